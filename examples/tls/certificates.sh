#!/bin/bash
# Makes an authority and a certificate for the ranks of a job, in FOLDER, with openssl. The certificates are valid for DAYS (30). The authority's key
# stays in FOLDER as well: keep it from the ranks.
# usage: certificates.sh FOLDER [DAYS]
set -euo pipefail
folder=$1 days=${2:-30}
mkdir -p "$folder"
cd "$folder"
umask 077
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

# Says nothing if it succeeds.
run() { local said; said=$("$@" 2>&1) || { echo "$said" >&2; exit 1; }; }

# A name that no other authority has, so that a certificate of that one is refused with the right reason.
run openssl req -x509 "${key[@]}" -days "$days" -subj "/CN=authority $(openssl rand -hex 8)" -keyout authority.key -out ca.pem
run openssl req "${key[@]}" -subj /CN=rank -keyout rank.key -out rank.csr
# Every rank connects and accepts.
printf 'subjectAltName=DNS:rank.job\nextendedKeyUsage=serverAuth,clientAuth\n' >rank.ext
run openssl x509 -req -in rank.csr -CA ca.pem -CAkey authority.key -CAcreateserial -days "$days" -extfile rank.ext -out rank.pem
rm rank.csr rank.ext ca.srl

cat <<END
export GLOO_RS_TRANSPORT=tls
export GLOO_RS_TLS_CERT=$PWD/rank.pem
export GLOO_RS_TLS_KEY=$PWD/rank.key
export GLOO_RS_TLS_CA_FILE=$PWD/ca.pem
END
