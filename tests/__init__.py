"""What all tests run in. `python3` is their own interpreter, and byte code is kept: in a folder of this process."""
import atexit
import os
import shutil
import signal
import sys
import tempfile

BYTE_CODE = tempfile.mkdtemp(prefix="run_tests.")
atexit.register(shutil.rmtree, BYTE_CODE, ignore_errors=True)
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = BYTE_CODE
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
if shutil.which("nvidia-smi"):                       # ids are names in tests, also where there are GPUs
    STUB = os.path.join(BYTE_CODE, "nvidia-smi")
    with open(STUB, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\n")
    os.chmod(STUB, 0o755)
    os.environ["PATH"] = BYTE_CODE + os.pathsep + os.environ["PATH"]
signal.signal(signal.SIGHUP, signal.SIG_DFL)         # under nohup, too
