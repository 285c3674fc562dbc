#!/usr/bin/env bash
# Installs wrangler into a folder, as package-lock.json says, once; where it is, nothing is done.
# Ends with 3 and says why where that can't be: no Node.js, no npm, or no package registry.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="${1:?the folder}"
patience=${WRANGLER_INSTALL_SECONDS:-240}

skip() {
    echo "wrangler: skipped, $1"
    exit 3
}

command -v node >/dev/null && command -v npm >/dev/null || skip "there is no Node.js with npm here"
major="$(node --version | sed 's/^v\([0-9]*\).*/\1/')"
[ "$major" -ge 20 ] || skip "it needs Node.js 20 or newer, and this is $(node --version)"
if cmp -s "$here/package-lock.json" "$target/.installed"; then
    exit 0
fi
mkdir -p "$target"
cp "$here/package.json" "$here/package-lock.json" "$target/"
echo "wrangler: installing (once; at most $patience s) ..."
if ! timeout --kill-after=10 "$patience" \
    npm ci --prefix "$target" --ignore-scripts --no-audit --no-fund --prefer-offline \
    >"$target/install.log" 2>&1; then
    tail -n 5 "$target/install.log"
    skip "npm could not install it (is the registry within reach?); see $target/install.log"
fi
cp "$here/package-lock.json" "$target/.installed"
