# Shared by the scripts of this folder: messages, packages, Rust, configuring and building. Sourced, never run.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Started by a service, there may be no HOME.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/xjit
models=${XJIT_MODELS:-$cache/models}
build=$root/build
jobs=${XJIT_JOBS:-$(nproc)}
min_rust=1.87
min_gcc=12

# What building needs, and what the tests need besides. Names are those of Debian 12 and Ubuntu 24.04.
build_packages=(g++ cmake ninja-build pkg-config ccache mold ca-certificates python3 python3-pip libxbyak-dev libabsl-dev
  libfmt-dev nlohmann-json3-dev libsimdjson-dev libhwloc-dev libcli11-dev libzydis-dev libgtest-dev libgmock-dev)
test_packages=(llvm-19-tools python3-numpy)

say() { printf 'xjit: %s\n' "$*" >&2; }
die() { printf 'xjit: error: %s\n' "$*" >&2; exit 1; }

# quietly LOG COMMAND...: runs it with its output in $cache/log/LOG.
quietly() {
  local log=$cache/log/$1; shift
  mkdir -p "$cache/log"
  "$@" >"$log" 2>&1 </dev/null
}
# reason LOG PATTERN: the first line of it that tells why, for a message.
reason() { grep -m 1 -E "$2" "$cache/log/$1" || echo "it failed"; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

apt_updated=
# install_packages NAME...: installs those that are missing, if any.
install_packages() {
  local p missing=()
  for p in "$@"; do installed "$p" || missing+=("$p"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "packages: no apt-get here (install the counterparts of: ${missing[*]})"
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    die "packages: installing needs root (run once as root or after \`sudo -v\`: apt-get install ${missing[*]})"
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  if [ -z "$apt_updated" ]; then
    # A list that can't be fetched matters only if a package is then missing, which the next command says.
    quietly apt-update.txt as_root apt-get -q -y update || true
    apt_updated=yes
  fi
  quietly apt-install.txt as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends \
    "${missing[@]}" || die "packages: apt-get: $(reason apt-install.txt '^E: ') (is there a network? see $cache/log/apt-install.txt)"
}

# at_least HAVE WANT: compares dotted versions.
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

rust_version() { "$1" --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p'; }

# fit_rust FOLDER: whether it has a cargo and rustc of at least $min_rust. A shim without a toolchain is none.
fit_rust() {
  local v
  v=$(rust_version "$1/rustc") || true
  [ -n "$v" ] && at_least "$v" "$min_rust" && "$1/cargo" --version >/dev/null 2>&1
}

# Leaves a cargo and rustc of at least $min_rust first in PATH: those there, or the distribution's.
need_rust() {
  local own n suffix=
  own=$(dirname "$(command -v rustc || echo /usr/bin/rustc)")
  if fit_rust "$own"; then return 0; fi
  # Names without a version, before whatever else PATH has.
  own=$cache/rust
  if ! fit_rust "$own"; then
    if ! fit_rust /usr/bin; then
      # Debian 12 has a newer compiler beside its own as rustc-web; Ubuntu has versioned packages, rustc-1.NN.
      [ -n "$apt_updated" ] || { quietly apt-update.txt as_root apt-get -q -y update || true; apt_updated=yes; }
      n=$(apt-cache pkgnames rustc-1. | sed -n 's/^rustc-\(1\.[0-9]*\)$/\1/p' | sort -V | tail -n 1)
      if apt-cache show rustc-web >/dev/null 2>&1; then
        install_packages cargo-web rustc-web
      elif [ -n "$n" ] && at_least "$n" "$min_rust"; then
        install_packages "cargo-$n" "rustc-$n"
        suffix=-$n
      else
        install_packages cargo rustc
      fi
    fi
    mkdir -p "$own"
    ln -sf "/usr/bin/cargo$suffix" "$own/cargo"
    ln -sf "/usr/bin/rustc$suffix" "$own/rustc"
    fit_rust "$own" || die "rust: need $min_rust or newer and no package here has it (put cargo and rustc $min_rust into PATH)"
  fi
  export PATH=$own:$PATH
}

check_compiler() {
  local cxx=${CXX:-c++} v
  command -v "$cxx" >/dev/null || die "compiler: no $cxx (unset CXX or install g++ $min_gcc)"
  [ "$(uname -m)" = x86_64 ] || die "machine: xjit is for x86-64, this is $(uname -m)"
  if "$cxx" --version | grep -qi clang; then return 0; fi
  v=$("$cxx" -dumpfullversion)
  at_least "$v" "$min_gcc" || die "compiler: $cxx is $v, need g++ $min_gcc or newer (CXX=g++-$min_gcc chooses another)"
}

# Objects and crates are cached outside the tree, so that a fresh clone builds quickly too.
configure() {
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  export XJIT_CARGO_TARGET_DIR=${XJIT_CARGO_TARGET_DIR:-$cache/cargo-target}
  mkdir -p "$XJIT_CARGO_TARGET_DIR"
  say "configuring $build"
  (cd "$root" && quietly configure.txt cmake --preset release -DXJIT_CARGO_TARGET_DIR="$XJIT_CARGO_TARGET_DIR" "$@") ||
    { grep -A 6 -E '^CMake Error' "$cache/log/configure.txt" | head -n 20 >&2 || true
      die "configure: cmake failed (see $cache/log/configure.txt)"; }
}

# compile [TARGET...]: everything without targets.
compile() {
  say "building ${*:-everything}"
  NINJA_STATUS='[%f/%t %es] ' ninja -C "$build" -j "$jobs" "$@" >&2 </dev/null ||
    die "build: ninja failed (the compiler's messages are above)"
}
