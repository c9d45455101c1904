#!/bin/bash
# Writes the examples of a Markdown file as files: each fenced block right after a line <!-- file: NAME -->.
# usage: scripts/extract-examples.sh FILE.md FOLDER
set -euo pipefail
mkdir -p "$2"
awk -v folder="$2" '
  /^<!-- file: [A-Za-z0-9_.-]+ -->$/ { name = $3; next }
  /^```/ && inside { close(folder "/" name); name = ""; inside = 0; next }
  /^```/ && name != "" { inside = 1; count++; printf "" > (folder "/" name); next }
  inside { print > (folder "/" name); next }
  name != "" { print FILENAME ":" FNR ": no block after the name " name > "/dev/stderr"; failed = 1; exit }
  END { if (!failed && inside) { print FILENAME ": " name " has no end" > "/dev/stderr"; failed = 1 }
        if (!failed && count == 0) { print FILENAME ": no examples" > "/dev/stderr"; failed = 1 }
        exit failed }
' "$1"
