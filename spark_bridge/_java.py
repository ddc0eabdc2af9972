"""Check for a Java that Spark can run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec

from activedb.errors import ConfigurationError, JavaNotFound

JAVA_VERSION_MIN = 17
_ADVICE = (
    "install one (Debian/Ubuntu: apt-get install openjdk-17-jdk-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME to one"
)


def check_tools() -> str:
    """Check that pyspark and Java exist, before anything is started; return their versions.

    Raises
    ------
    ConfigurationError
        If pyspark or pyarrow is not installed.
    JavaNotFound
        If the Java that Spark would use is missing, broken or older than 17.
    """
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise ConfigurationError(
                f"{module} is not installed; install it with: pip install '.[spark]'"
            )
    return f"{_check_java()}, pyspark {version('pyspark')}"


def _check_java() -> str:
    needed = f"Spark needs Java {JAVA_VERSION_MIN} or newer"
    # The choice is Spark's own: JAVA_HOME when it is set, else the PATH.
    home = os.environ.get("JAVA_HOME")
    if home:
        java = shutil.which(os.path.join(home, "bin", "java"))
        where = f"JAVA_HOME is {home}"
    else:
        java = shutil.which("java")
        where = "there is no java on the PATH"
    if java is None:
        also = ", which holds no bin/java" if home else ""
        raise JavaNotFound(f"{needed}, but {where}{also}; {_ADVICE}")
    number = _java_version(java)
    if number is None:
        raise JavaNotFound(f"{needed}, but {java} does not run; {_ADVICE}")
    if number < JAVA_VERSION_MIN:
        raise JavaNotFound(f"{needed}, but {java} is version {number}; {_ADVICE}")
    return f"Java {number} ({java})"


def _java_version(java: str) -> int | None:
    """Return the feature version (8, 17, 21) of a java program, None when it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed argument to the java that Spark will run
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # `openjdk version "17.0.15" 2025-04-15`; versions before 9 are written "1.8.0_392".
    found = re.search(r'^\w+ version "(?:1\.)?(\d+)', answer.stderr + answer.stdout, re.MULTILINE)
    return int(found.group(1)) if found else None
