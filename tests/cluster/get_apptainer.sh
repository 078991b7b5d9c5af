#!/bin/bash
# Apptainer on a Debian that has none: from a newer suite of Debian, unpacked into PREFIX with a libc of its own.
# Neither apt's sources nor the system's libc are touched.        get_apptainer.sh PREFIX SUITE MIRROR
set -euo pipefail
prefix=$(realpath -m "$1")
suite=$2
libraries=usr/lib/x86_64-linux-gnu
mirror=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work"/{lists/partial,cache/archives/partial,packages} "$prefix"/glibc
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$work/suite.list"
apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/suite.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
    -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=2)
"${apt[@]}" update
(cd "$work/packages" && "${apt[@]}" download apptainer libc6)
dpkg-deb -x "$work"/packages/apptainer_*.deb "$prefix"
dpkg-deb -x "$work"/packages/libc6_*.deb "$work/libc"
for name in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libresolv.so.2 libnss_files.so.2 libnss_dns.so.2; do
    cp -aL "$work/libc/$libraries/$name" "$prefix/glibc/"
done

# The programs start with that libc; everything else they need is the system's.
for program in "$prefix/usr/bin/apptainer" "$prefix/$libraries/apptainer/bin/starter"; do
    patchelf --set-interpreter "$prefix/glibc/ld-linux-x86-64.so.2" \
        --set-rpath "$prefix/glibc:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu" "$program"
done
# Debian builds it for /; it looks for its configuration beside its prefix.
ln -sfn ../etc "$prefix/usr/etc"
ln -sfn ../../etc "$prefix/usr/lib/etc"
mkdir -p "$prefix/usr/var/lib/apptainer/mnt/session"
ln -sfn ../var "$prefix/usr/lib/var"
# A virtual machine's or container's root may lack capabilities that "full" asks for.
sed -i 's/^root default capabilities = full/root default capabilities = no/' "$prefix/etc/apptainer/apptainer.conf"
"$prefix/usr/bin/apptainer" --version
