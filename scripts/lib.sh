# shellcheck shell=bash
# Sourced by the scripts beside it.

# shellcheck disable=SC2034
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export LC_ALL=C

# Prints the comment at the head of the calling script.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

die() { # exit code, message
  echo "${0##*/}: $2" >&2
  exit "$1"
}

# Compilers at a time: $MUSTER_JOBS, else one a core, but at most one a 1.5 GB of free memory (LibTorch's headers are large).
jobs_here() {
  local cores memory
  if [[ -n ${MUSTER_JOBS:-} ]]; then
    [[ $MUSTER_JOBS =~ ^[1-9][0-9]*$ ]] || die 2 "MUSTER_JOBS: found '$MUSTER_JOBS', wanted a whole number from 1"
    echo "$MUSTER_JOBS"
    return
  fi
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null || echo "$cores")
  ((memory < cores)) && cores=$memory
  echo $((cores > 0 ? cores : 1))
}

# Prints the folder of the LibTorch that stands in for .venv's: $MUSTER_TORCH, else, where there is no .venv, a torch 2.11 of python3;
# nothing where there is none.
foreign_torch() {
  if [[ -n ${MUSTER_TORCH:-} ]]; then
    echo "$MUSTER_TORCH"
    return
  fi
  # python3 may be that of an activated .venv.
  [[ ! -d $root/.venv ]] || return 0
  python3 - <<'PY' 2>/dev/null || true
import importlib.util, os, re
spec = importlib.util.find_spec("torch")
folder = list(spec.submodule_search_locations)[0] if spec else ""
version = os.path.join(folder, "version.py")
library = os.path.join(folder, "lib/libtorch_cpu.so")
if folder and os.path.exists(library) and re.search(r"__version__ = ['\"]2\.11\.", open(version).read()):
    print(folder)
PY
}
