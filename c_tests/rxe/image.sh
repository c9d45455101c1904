# What base.sh and guest.sh share: how a guest's files are put together. To be sourced.

# A folder for a guest's files. Its links are those of every merged Debian, so each file has one place, whichever path names it;
# an archive that is unpacked later must have them too, or the kernel puts a folder in the place of a link.
skeleton() { # ROOT
  mkdir -p "$1"/usr/{bin,sbin,lib,lib64}
  ln -s usr/bin usr/sbin usr/lib usr/lib64 "$1"
}

libraries() { # FILE...: of those that are programs or libraries, the libraries that they load
  local file
  for file in "$@"; do
    [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ] || continue
    ldd "$file" 2>/dev/null | sed -n 's/^\t\(.* => \)\?\(\/.*\) (0x[0-9a-f]*)$/\2/p'
  done | sort -u
}

place() { # ROOT FILE...: the file that each path leads to, at that path
  local root=$1 file
  shift
  for file in "$@"; do
    [ ! -e "$root$file" ] || continue
    mkdir -p "$root${file%/*}"
    cp -L "$file" "$root$file"
  done
}

pack() { # ROOT ARCHIVE: appends an archive that the kernel unpacks; all files are root's
  (cd "$1" && find . -mindepth 1 -print0 | LC_ALL=C sort -z | cpio --null --create --format newc --owner 0:0 --quiet) >>"$2"
}
