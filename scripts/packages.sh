# Sourced by the scripts that need system packages.

apt_updated=
# need WHAT PACKAGE: what is missing, and the Debian package that brings it.
need() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $2 for $1"
    if [ -z "$apt_updated" ]; then
      apt-get update -qq
      apt_updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null
  else
    echo "$1 is missing. Install it, on Debian with: sudo apt-get install $2" >&2
    exit 1
  fi
}
