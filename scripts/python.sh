# Sourced by the scripts of this folder. Sets ROOT, and sets PYTHON to the clone's own interpreter.
# Usage: . scripts/python.sh core|s3-server|docs|tables|spark|dev. With `-` it only defines the functions.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

for link in providers metadata; do
  if [ -f "$ROOT/tieredstore/$link" ]; then
    echo "setup: tieredstore/$link is a file, expected a symbolic link: clone again with \`git clone -c core.symlinks=true\`, on Windows in WSL" >&2
    exit 1
  fi
done

# find_python: sets CANDIDATE to a Python that can make the environment.
find_python() {
  for CANDIDATE in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$CANDIDATE" ] && command -v "$CANDIDATE" >/dev/null 2>&1 || continue
    "$CANDIDATE" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
  done
  echo "setup: Python 3.11 or newer is needed; none was found" >&2
  exit 1
}

# is_set_up KIND: whether setup_env.py would have nothing to do. The check starts no Python. It reads the stamp that
# setup_env.py wrote: the hash of the environment's inputs, the interpreter, and the path of the clone.
is_set_up() {
  local kinds kind hash interpreter root now
  case $1 in
    core) kinds='core tables s3-server docs spark dev' ;;
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
  # Packages are installed without bytecode. If Python may not write bytecode, each process compiles
  # hundreds of modules again. This takes longer than most commands and tests.
  unset PYTHONDONTWRITEBYTECODE
  if is_set_up "$1"; then
    PYTHON=$ROOT/.venv/bin/python
  else
    find_python
    PYTHON=$("$CANDIDATE" "$ROOT/scripts/setup_env.py" "$1") || exit 1
  fi
  export PATH="$ROOT/.venv/bin:$PATH"
}

[ "$1" = - ] || set_up "$1"
