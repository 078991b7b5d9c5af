# The first cell of a lesson at Colab, Kaggle or Binder: paste it above the others, or run it as a script.
# It installs the workshop beside what the host has, says what the host lacks, and lays the lessons in lab/.
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

NAME = "large-model-workshop"
WHEEL = os.environ.get("WORKSHOP_WHEEL", NAME)  # the path or the address of a wheel; else what the index has
# The notebook that you see runs on these: a host's own stay as they are, whatever their version.
HOSTS_OWN = {"ipykernel", "ipython", "jupyter_client", "jupyterlab", "pyzmq"}


def run(*words):
    print("$", " ".join(words), flush=True)
    return subprocess.run([sys.executable, "-m", *words], check=False).returncode


def lacks(text):
    wanted = Requirement(text)
    if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
        return False
    try:
        here = version(wanted.name)
    except PackageNotFoundError:
        return True
    if wanted.specifier.contains(here, prereleases=True):
        return False
    if wanted.name in HOSTS_OWN:
        print(f"note: {wanted.name} {here} is the host's and stays; we are tried with {wanted.specifier}")
        return False
    return True


if run("pip", "install", "--quiet", "--no-deps", WHEEL):
    sys.exit(f"pip could not install {WHEEL}: set WORKSHOP_WHEEL to the path or address of a wheel")
missing = [text for text in requires(NAME) or [] if lacks(text)]
if missing and run("pip", "install", "--quiet", *missing):
    sys.exit("pip could not install what is missing; its last lines say what")
run("workshop", "lab", "--copies-only", "--dir", "lab")
run("workshop", "doctor")
# In a notebook: now `%load_ext workshop` in the next cell.
