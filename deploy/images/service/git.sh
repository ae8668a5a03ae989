# Copies git for https and its dependencies into the folder $1, from Debian's packages: those in the folder `debs` beside
# this file, or else those that apt downloads. Only files that the base lacks are copied, without perl and git's servers.
set -eu
target=$1 root=/unpacked
mkdir -p "$target" "$root" debs/partial
if ! ls debs/*.deb >/dev/null 2>&1; then
  apt-get update -q
  apt-get install -q -y --no-install-recommends --download-only -o Dir::Cache::archives="$PWD/debs" git ca-certificates
fi
for package in debs/*.deb; do dpkg -x "$package" "$root"; done
# On a base with separate /usr the packages' /lib is what they have in /usr/lib.
[ ! -d "$root/lib" ] || cp -a "$root/lib/." "$root/usr/lib/"

cd "$root/usr/lib/git-core"
mkdir -p "$target/usr/bin" "$target/usr/lib/git-core"
cp -a "$root/usr/bin/git" "$root/usr/bin/git-upload-pack" "$root/usr/bin/git-receive-pack" "$target/usr/bin/"
# Links to git, shell scripts, and the program for http and https.
find . -maxdepth 1 '(' -type l -o -size -64k -o -name git-remote-http ')' ! -name '*-imap-send' ! -type d \
  -exec cp -a '{}' "$target/usr/lib/git-core/" ';'

libraries=$(dirname "$(find "$root/usr/lib" -name 'libcurl-gnutls.so.4' | head -n 1)")
programs="$target/usr/bin/git $target/usr/lib/git-core/git-remote-http"
LD_LIBRARY_PATH=$libraries ldd $programs > /needed.txt
if grep 'not found' /needed.txt; then exit 1; fi
for library in $(sed -n "s|.*=> \($root/[^ ]*\) .*|\1|p" /needed.txt | sort -u); do
  place=$target${library#"$root"}
  mkdir -p "$(dirname "$place")"
  cp -L "$library" "$place"
done
if [ ! -s /etc/ssl/certs/ca-certificates.crt ]; then
  mkdir -p "$target/etc/ssl/certs"
  cat "$root"/usr/share/ca-certificates/*/*.crt > "$target/etc/ssl/certs/ca-certificates.crt"
fi
