# Sourced by the scripts here: sets ROOT, and PYTHON to the clone's own interpreter.
# Usage: . scripts/python.sh core|s3-server|tables|spark|dev; with - for the functions alone.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# find_python: sets CANDIDATE to a Python that can make the environment.
find_python() {
  for CANDIDATE in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$CANDIDATE" ] && command -v "$CANDIDATE" >/dev/null 2>&1 || continue
    "$CANDIDATE" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
  done
  echo "setup: Python 3.11 or newer is needed; none was found" >&2
  exit 1
}

# is_set_up KIND: whether setup_env.py would find nothing to do, found out without starting a Python. It wrote the
# stamp: the hash of what the environment is made from, its interpreter, and its clone.
is_set_up() {
  local kinds kind hash interpreter root now
  case $1 in
    core) kinds='core tables s3-server spark dev' ;;
    tables) kinds='tables spark dev' ;;
    *) kinds="$1 dev" ;;
  esac
  [ -z "${PYTHON:-}" ] && [ -x "$ROOT/.venv/bin/python" ] || return 1
  for kind in $kinds; do
    [ -f "$ROOT/.venv/.complete-$kind" ] || continue
    { read -r hash && read -r interpreter && read -r root; } <"$ROOT/.venv/.complete-$kind" || continue
    [ "$root" = "$ROOT" ] && [ "$interpreter" -ef "$ROOT/.venv/bin/python" ] || continue
    now=$(cat "$ROOT"/{pyproject.toml,scripts/constraints.txt,setup.py} "$ROOT"/tieredstore/message/_*.[ch] | sha256sum) || return 1
    [ "${now%% *}" != "$hash" ] || return 0
  done 2>/dev/null
  return 1
}

set_up() {
  if is_set_up "$1"; then
    PYTHON=$ROOT/.venv/bin/python
  else
    find_python
    PYTHON=$("$CANDIDATE" "$ROOT/scripts/setup_env.py" "$1") || exit 1
  fi
  export PATH="$ROOT/.venv/bin:$PATH"
}

[ "$1" = - ] || set_up "$1"
