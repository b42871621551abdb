"""Makes the wheel from built libraries: ``cargo xtask wheel`` calls it. Needs Python, readelf and strip."""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUMMARY = "Stream-ordered GPU memory with a hard limit, for PyTorch, CuPy and Numba"
# The same bytes from the same libraries.
TIME = (1980, 1, 1, 0, 0, 0)


def glibc_of(library: Path) -> tuple[int, int]:
    """Returns the newest version of glibc whose symbols a library needs."""
    versions = subprocess.run(["readelf", "-V", "-W", library], check=True, capture_output=True, text=True).stdout
    found = [(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", versions)]
    return max(found, default=(2, 17))


def stripped(library: Path, folder: Path) -> bytes:
    """Returns a library without its debug information."""
    to = folder / library.name
    subprocess.run(["strip", "--strip-unneeded", "-o", to, library], check=True)
    return to.read_bytes()


def hash_of(content: bytes) -> str:
    """Returns the hash of a file as a record of a wheel has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def build(arguments: argparse.Namespace) -> Path:
    """Writes the wheel, and returns its path."""
    # By path in the package.
    libraries = {
        "dmr/lib/libdmr_capi.so": arguments.library,
        "dmr/lib/libdmr_torch.so": arguments.shim,
        "dmr/lib/simulated/libcuda.so.1": arguments.simulator,
    }
    major, minor = max(glibc_of(library) for library in libraries.values())
    tag = f"py3-none-manylinux_{major}_{minor}_x86_64"
    files: dict[str, bytes] = {}
    for path in sorted((HERE / "dmr").rglob("*")):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files[str(path.relative_to(HERE))] = path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        for path, library in libraries.items():
            files[path] = stripped(library, Path(folder))
    info = f"dmr-{arguments.version}.dist-info"
    readme = (HERE / "README.md").read_text()
    metadata = [
        "Metadata-Version: 2.1",
        "Name: dmr",
        f"Version: {arguments.version}",
        f"Summary: {SUMMARY}",
        "License: MIT OR Apache-2.0",
        "Requires-Python: >=3.9",
        "Description-Content-Type: text/markdown",
        "",
        readme,
    ]
    files[f"{info}/METADATA"] = "\n".join(metadata).encode()
    wheel = ["Wheel-Version: 1.0", "Generator: dmr", "Root-Is-Purelib: false", f"Tag: {tag}", ""]
    files[f"{info}/WHEEL"] = "\n".join(wheel).encode()
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/licenses/{name}"] = (HERE.parent / name).read_bytes()
    record = [f"{path},{hash_of(content)},{len(content)}" for path, content in files.items()]
    record += [f"{info}/RECORD,,", ""]
    files[f"{info}/RECORD"] = "\n".join(record).encode()
    arguments.out.mkdir(parents=True, exist_ok=True)
    to = arguments.out / f"dmr-{arguments.version}-{tag}.whl"
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.external_attr = (0o755 if ".so" in path else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return to


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libdmr_capi.so")
    parser.add_argument("--shim", type=Path, required=True, help="libdmr_torch.so")
    parser.add_argument("--simulator", type=Path, required=True, help="libdmr_sim_library.so")
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the wheel")
    print(build(parser.parse_args()))


if __name__ == "__main__":
    main()
