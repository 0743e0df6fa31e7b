#!/bin/sh
# Says what is missing in one line, before any work, and ends with 2.
#
# usage: hack/preflight.sh [test]
#   test: what only tests need is looked for as well: a C compiler (the race detector is written in C), and Java and
#   Maven for the Kafka they run on. RabbitMQ is looked for by hack/servers, which can unpack it on Debian and Ubuntu.
set -u
cd "$(dirname "$0")/.." || exit 2

refuse() {
  echo "NOT OK: $*"
  exit 2
}

command -v go >/dev/null 2>&1 || refuse "Go is not installed: get version 1.26 or newer from https://go.dev/dl"
command -v git >/dev/null 2>&1 || refuse "git is not installed: apt-get install git, dnf install git, or xcode-select --install"

# With the default GOTOOLCHAIN an older Go fetches the version that go.mod asks for.
wanted=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)
found=$(go env GOVERSION 2>/dev/null) ||
  refuse "this Go cannot fetch Go $wanted, which go.mod asks for: install it from https://go.dev/dl"
version=${found#go}
version=${version%%[!0-9.]*}
major=${version%%.*}
rest=${version#*.}
minor=${rest%%.*}
if [ "${major:-0}" -lt "${wanted%%.*}" ] ||
  { [ "${major:-0}" -eq "${wanted%%.*}" ] && [ "${minor:-0}" -lt "${wanted#*.}" ]; }; then
  refuse "Go $wanted or newer is needed and this is $found: install it from https://go.dev/dl"
fi

# Makes the folder and writes to it; names the folder that refused and its owner.
writable() {
  if mkdir -p "$2" 2>/dev/null && [ -d "$2" ] && [ -w "$2" ]; then
    return
  fi
  at=$2
  while [ ! -e "$at" ]; do at=$(dirname "$at"); done
  owner=$(ls -ld "$at" | awk '{print $3}')
  refuse "the $1 $2 cannot be written ($at belongs to $owner): make it yours, or set $3 to a folder that is"
}
if [ -z "${XDG_CACHE_HOME:-}" ] && [ -z "${HOME:-}" ]; then
  refuse "neither HOME nor XDG_CACHE_HOME is set: set one to a folder that can be written"
fi
writable "cache" "${XDG_CACHE_HOME:-$HOME/.cache}/postrider" XDG_CACHE_HOME
writable "Go build cache" "$(go env GOCACHE)" GOCACHE
writable "Go module cache" "$(go env GOMODCACHE)" GOMODCACHE

if [ "${1:-}" = test ]; then
  cc=$(go env CC)
  # The compiler alone is not enough: the C library's headers come in a package of their own on Debian.
  printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' |
    $cc -x c -o /dev/null - 2>/dev/null ||
    refuse "no C compiler that works ($cc), and the race detector needs one:" \
      "apt-get install gcc libc6-dev, dnf install gcc, or xcode-select --install"
  command -v java >/dev/null 2>&1 ||
    refuse "Java is not installed, and the tests run a real Kafka: apt-get install openjdk-17-jre-headless, or brew install openjdk"
  for kafka in "${XDG_CACHE_HOME:-$HOME/.cache}"/postrider/kafka-*; do :; done
  [ -d "$kafka/lib" ] || command -v mvn >/dev/null 2>&1 ||
    refuse "Maven is not installed, and it fetches the Kafka that tests run: apt-get install maven, or brew install maven"
fi
