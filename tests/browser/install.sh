#!/usr/bin/env bash
# Debian's Chromium, for the tests that look at the HTML report as a person does. Does nothing where there is one.
set -euo pipefail
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "chromium is not on the PATH; install it (Debian: apt-get install chromium) and try again" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
