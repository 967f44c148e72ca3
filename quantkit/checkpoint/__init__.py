"""Reading and writing of model folders; the only place that touches safetensors."""
