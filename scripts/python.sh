# Sourced by the scripts here: sets ROOT, and PYTHON to the clone's own interpreter.
# Usage: . scripts/python.sh core|s3-server|spark|dev
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
  [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
  "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
  candidate=
done
[ -n "${candidate:-}" ] || { echo "setup: Python 3.11 or newer is needed; none was found" >&2; exit 1; }
PYTHON=$("$candidate" "$ROOT/scripts/setup_env.py" "$1") || exit 1
export PATH="$ROOT/.venv/bin:$PATH"
