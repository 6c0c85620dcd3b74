#!/bin/sh
# Installs what pip cannot, on Debian and Ubuntu, as root: a browser for tests/test_report_browser.py.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium
