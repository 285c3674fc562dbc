#!/usr/bin/env bash
# Puts a browser where the tests of the dashboard find it, if there is none: Debian's chromium.
# Ends with 3 and says why where that can't be: no apt, no right to install, or no mirror in reach.
set -euo pipefail
patience=${CHROMIUM_INSTALL_SECONDS:-300}

skip() {
    echo "dashboard: skipped, $1"
    exit 3
}

if [ -n "${TOQUE_BROWSER:-}" ]; then
    [ -x "$TOQUE_BROWSER" ] || skip "TOQUE_BROWSER is no program: $TOQUE_BROWSER"
    exit 0
fi
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
command -v apt-get >/dev/null || skip "there is no chromium here, and no apt-get to install it"
[ "$(id -u)" = 0 ] || skip "there is no chromium here; install it, or name a browser in TOQUE_BROWSER"
echo "dashboard: installing chromium (once; at most $patience s) ..."
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! timeout --kill-after=10 "$patience" sh -c \
    'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium' >"$log" 2>&1; then
    tail -n 5 "$log"
    skip "apt-get could not install chromium (is a mirror within reach?)"
fi
