#!/bin/sh
# Makes the store's environment. Reverb has wheels for x86-64 Linux and Python 3.11 only; elsewhere the store
# falls back to the numpy table in the main environment, and this script says so.
set -eu
env=$1
python=$2
if [ "$(uname -sm)" != "Linux x86_64" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  echo "Reverb has no wheels for $(uname -sm) with $("$python" --version): the store will use the numpy table (--replay=memory)"
  mkdir -p "$env" && touch "$env/.ready"
  exit 0
fi
test -d "$env/bin" || "$python" -m venv "$env"
"$env/bin/pip" install -q --disable-pip-version-check -r requirements/reverb.txt
touch "$env/.ready"
