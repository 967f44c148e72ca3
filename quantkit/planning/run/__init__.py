"""What making an artifact takes: files, memory and time."""
