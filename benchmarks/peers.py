"""Quantizes a model with another tool, measures it, and leaves dense weights for score.py.

    python peers.py --peer gptqmodel --model DIR --tokens IDS.npy --bits 4 --group-size 64 --out DIR
    python peers.py --peer modelopt --model DIR --tokens IDS.npy --scheme nvfp4 --out DIR

Run it with the interpreter of that peer's own environment (README.md has the install lines).  The
tool gets exactly the rows of IDS.npy, one sample each; embeddings and head stay as they are; all
that is not in the job is the tool's default, unless ``--option key=value`` says otherwise.

Three processes: this one only waits and measures; the first child is the whole quantization, from
the interpreter's start to the artifact on disk; the second, unmeasured, dequantizes that artifact.
OUT then holds ``artifact/``, ``dense.safetensors``, ``figures.json``, ``log.txt`` and what else the
tool drops where it runs; with ``--scheme`` also ``own.safetensors``, the weights with which the
tool's own forward computes. The decoded ones are compared with these.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measure import measure

HERE = Path(__file__).resolve().parent
METHODS = {
    "gptqmodel": ("gptq", "awq", "rtn"),
    "llmcompressor": ("gptq", "awq", "rtn", "smoothquant"),
    "bitsandbytes": ("nf4",),
    "modelopt": ("max", "mse", "four-over-six", "local-hessian", "awq", "gptq"),
    "autoround": ("signround", "rtn"),
}
SCHEMES = ("nvfp4", "mxfp4", "mxfp8", "fp8-channel", "fp8-tensor", "fp8-block")
PACKAGES = (
    "gptqmodel",
    "llmcompressor",
    "compressed-tensors",
    "bitsandbytes",
    "nvidia-modelopt",
    "auto-round",
    "transformers",
    "torch",
)


@dataclass(frozen=True)
class Job:
    """One quantization: what goes in, the grid, and where the artifact goes.

    With a ``scheme``, one of SCHEMES, bits, group size and symmetry are the scheme's. Activations
    are then quantized, too, as the tool does it for that scheme, or else left alone.
    """

    model: str
    tokens: str
    out: str
    method: str
    bits: int
    group_size: int
    symmetric: bool
    scheme: str | None = None
    activations: bool = False
    options: dict = field(default_factory=dict)

    @property
    def artifact(self) -> str:
        """Folder that the tool writes."""
        return str(Path(self.out) / "artifact")

    @property
    def own(self) -> str:
        """File for the weights with which the tool's own forward computes."""
        return str(Path(self.out) / "own.safetensors")


def option(text: str) -> tuple[str, object]:
    """``key=value`` with the value read as JSON, or as text where it is not JSON."""
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def absolute(text: str) -> str:
    """The path from the root, as the tool runs in another folder."""
    return str(Path(text).resolve())


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line, with the peer's first method as default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=METHODS, required=True)
    parser.add_argument(
        "--model", type=absolute, required=True, help="folder of the original model"
    )
    parser.add_argument(
        "--tokens", type=absolute, required=True, help="int64 .npy, [samples, length]"
    )
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=64, help="-1: one group a row")
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--scheme", choices=SCHEMES, help="a float format instead of bits")
    parser.add_argument("--activations", action="store_true", help="quantized, too; with --scheme")
    parser.add_argument("--method")
    parser.add_argument(
        "--out", type=absolute, required=True, help="folder for the results, new or empty"
    )
    parser.add_argument("--option", type=option, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--stage", choices=["all", "quantize"], default="all", help=argparse.SUPPRESS
    )
    args = parser.parse_args(argv)
    args.method = args.method or METHODS[args.peer][0]
    if args.method not in METHODS[args.peer]:
        parser.error(f"{args.peer} knows {', '.join(METHODS[args.peer])}, not {args.method}")
    return args


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a result."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(argv: list[str]) -> int:
    """Exit code: 0 when artifact, dense weights and figures are written."""
    args = parse(argv)
    job = Job(
        args.model,
        args.tokens,
        args.out,
        args.method,
        args.bits,
        args.group_size,
        not args.asymmetric,
        args.scheme,
        args.activations,
        dict(args.option),
    )
    if args.stage == "quantize":
        os.chdir(job.out)  # some tools leave logs and caches where they are started
        importlib.import_module(f"peer_{args.peer}").quantize(job)
        return 0
    out = Path(args.out)
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "OMP_NUM_THREADS": str(args.threads),
        "HF_HUB_OFFLINE": "1",
        "GPTQMODEL_CPU_WORKERS": str(max(2, args.threads)),
    }
    figures = measure(
        [sys.executable, str(HERE / "peers.py"), *argv, "--stage", "quantize"], out / "log.txt"
    )
    report = {
        "peer": args.peer,
        **asdict(job),
        **figures,
        "threads": args.threads,
        "load_average": os.getloadavg()[0],
        "versions": versions(),
    }
    artifact = Path(job.artifact)
    if not figures["exit_code"]:
        report["artifact_bytes"] = sum(f.stat().st_size for f in artifact.rglob("*.safetensors"))
        dense = [
            str(HERE / "dense.py"),
            job.artifact,
            str(out / "dense.safetensors"),
            "--own",
            job.own,
        ]
        done = subprocess.run([sys.executable, *dense], check=False, capture_output=True, text=True)  # noqa: S603
        report |= json.loads(done.stdout) if not done.returncode else {"decoded": done.stderr}
    (out / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))
    return int(figures["exit_code"] or "decoded" in report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
