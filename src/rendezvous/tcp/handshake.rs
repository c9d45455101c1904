//! The handshake of a store's client and server, by which they prove to each other that they have the job's token,
//! before any request is read. Without I/O.
//!
//! | from | bytes |
//! |---|---|
//! | client | hello of the [protocol](super::protocol), flags (1), nonce (32) |
//! | server | hello of the protocol, flags (1), nonce (32), proof (32) |
//! | client | proof (32) |
//! | server | 1 (accepted) |
//!
//! Flag 1: the sender has a token. Each proof covers all bytes sent before it. Without a token on either side the same
//! bytes are exchanged but prove nothing: then every process that can reach the port is accepted.

use super::protocol::{CLIENT_HELLO_BYTES, MAGIC, SERVER_HELLO_BYTES, client_hello, server_hello};
use crate::net::gate::{Handshake, Refused};
use crate::net::handshake::{Accepting, Fault, Nonce};
use crate::secret::{JobToken, Proof, SecretKey};

/// Length of the client's first message.
pub(super) const CLIENT_BYTES: usize = CLIENT_HELLO_BYTES + 33;
/// Length of the server's reply.
pub(super) const SERVER_BYTES: usize = SERVER_HELLO_BYTES + 65;
/// Length of the client's proof.
pub(super) const PROOF_BYTES: usize = 32;
/// The byte by which the server accepts a client.
pub(super) const WELCOME: u8 = 1;

/// Offset of the server's proof.
const PROOF_AT: usize = SERVER_BYTES - PROOF_BYTES;

const SERVER: &str = "gloo_rs store server";
const CLIENT: &str = "gloo_rs store client";

/// The key of all proofs of a job's stores.
pub(super) fn key(token: &JobToken) -> SecretKey {
    SecretKey::derive(token, "gloo_rs store", &[])
}

/// The client's first message.
pub(super) fn client(key: &SecretKey, nonce: &Nonce) -> [u8; CLIENT_BYTES] {
    let mut out = [0; CLIENT_BYTES];
    out[..CLIENT_HELLO_BYTES].copy_from_slice(&client_hello());
    out[CLIENT_HELLO_BYTES] = u8::from(key.has_token());
    out[CLIENT_HELLO_BYTES + 1..].copy_from_slice(nonce);
    out
}

/// The reply to a client's first message with a valid hello. If only one of the two sides has a token, the reply has no
/// proof, and the fault is returned too.
pub(super) fn server(
    key: &SecretKey,
    client: &[u8; CLIENT_BYTES],
    instance: u64,
    nonce: &Nonce,
) -> ([u8; SERVER_BYTES], Result<(), Fault>) {
    let mut out = [0; SERVER_BYTES];
    out[..SERVER_HELLO_BYTES].copy_from_slice(&server_hello(instance));
    out[SERVER_HELLO_BYTES] = u8::from(key.has_token());
    out[SERVER_HELLO_BYTES + 1..PROOF_AT].copy_from_slice(nonce);
    let fault = check_flag(key, client[CLIENT_HELLO_BYTES]);
    if fault.is_ok() {
        let proof = key.prove(SERVER, &[client, &out[..PROOF_AT]]);
        out[PROOF_AT..].copy_from_slice(&proof);
    }
    (out, fault)
}

/// The client's proof, if the server's proof is valid.
pub(super) fn proof(key: &SecretKey, client: &[u8; CLIENT_BYTES], server: &[u8; SERVER_BYTES]) -> Result<Proof, Fault> {
    check_flag(key, server[SERVER_HELLO_BYTES])?;
    let theirs: Proof = std::array::from_fn(|i| server[PROOF_AT + i]);
    if !key.verify(SERVER, &[client, &server[..PROOF_AT]], &theirs) {
        return Err(Fault::Proof);
    }
    Ok(key.prove(CLIENT, &[client, server]))
}

/// Verifies the client's proof.
pub(super) fn verify(
    key: &SecretKey,
    client: &[u8; CLIENT_BYTES],
    server: &[u8; SERVER_BYTES],
    proof: &Proof,
) -> Result<(), Fault> {
    if key.verify(CLIENT, &[client, server], proof) { Ok(()) } else { Err(Fault::Proof) }
}

/// The server's side of one handshake.
pub(super) struct Acceptor {
    key: SecretKey,
    instance: u64,
    nonce: Nonce,
    client: [u8; CLIENT_BYTES],
    /// The reply to the client's first message, once it has been sent.
    server: Option<[u8; SERVER_BYTES]>,
    proof: Proof,
    /// Number of bytes received of the client's first message, or of its proof.
    have: usize,
}

impl Acceptor {
    /// `nonce` must be random and never used before.
    pub(super) fn new(key: SecretKey, instance: u64, nonce: Nonce) -> Self {
        Self { key, instance, nonce, client: [0; CLIENT_BYTES], server: None, proof: [0; PROOF_BYTES], have: 0 }
    }
}

impl Handshake for Acceptor {
    type Proven = ();

    fn wanted(&self) -> usize {
        if self.server.is_none() { CLIENT_BYTES - self.have } else { PROOF_BYTES - self.have }
    }

    fn bind(&mut self, binding: &[u8]) {
        self.key = self.key.bound(binding);
    }

    fn claims(&self) -> Option<u32> {
        None
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Accepting<()>, Refused> {
        let into = if self.server.is_none() { &mut self.client[self.have..] } else { &mut self.proof[self.have..] };
        bytes.iter().zip(into).for_each(|(byte, into)| *into = *byte);
        self.have += bytes.len().min(self.wanted());
        if let Some(server) = &self.server {
            if self.have < PROOF_BYTES {
                return Ok(Accepting::Waiting);
            }
            let verdict = verify(&self.key, &self.client, server, &self.proof);
            return verdict.map(Accepting::Proven).map_err(|fault| Refused(fault, None));
        }
        let said = &self.client[..self.have];
        let magic = said.len().min(MAGIC.len());
        if said[..magic] != MAGIC[..magic] {
            let fault = Fault::foreign(said);
            return Err(Refused(fault, fault.reply()));
        }
        if let Some(hello) = said.first_chunk::<CLIENT_HELLO_BYTES>().filter(|h| **h != client_hello()) {
            // Reply, so that the client can report this library's version.
            return Err(Refused(Fault::Version(hello[8]), Some(server_hello(self.instance).to_vec())));
        }
        if said.len() < CLIENT_BYTES {
            return Ok(Accepting::Waiting);
        }
        let (answer, verdict) = server(&self.key, &self.client, self.instance, &self.nonce);
        verdict.map_err(|fault| Refused(fault, Some(answer.to_vec())))?;
        (self.server, self.have) = (Some(answer), 0);
        Ok(Accepting::Send(answer.to_vec()))
    }
}

fn check_flag(key: &SecretKey, flag: u8) -> Result<(), Fault> {
    match flag {
        0 | 1 if (flag == 1) == key.has_token() => Ok(()),
        0 | 1 => Err(Fault::OneToken { theirs: flag == 1 }),
        _ => Err(Fault::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(tokens: [&str; 2]) -> [SecretKey; 2] {
        tokens.map(|token| key(&JobToken::new(token)))
    }

    #[test]
    fn the_same_token_is_proven_by_both_and_another_by_none() {
        for (tokens, ok) in [(["t", "t"], true), (["", ""], true), (["t", "u"], false)] {
            let [ours, theirs] = keys(tokens);
            let hello = client(&ours, &[1; 32]);
            let (answer, fault) = server(&theirs, &hello, 5, &[2; 32]);
            assert_eq!(fault, Ok(()));
            let proof = proof(&ours, &hello, &answer);
            assert_eq!(proof.is_ok(), ok);
            let proof = proof.unwrap_or(ours.prove(CLIENT, &[&hello, &answer]));
            assert_eq!(verify(&theirs, &hello, &answer, &proof).is_ok(), ok);
            // Replayed to a server with another nonce; the server's own proof, reflected.
            let (another, _) = server(&theirs, &hello, 5, &[3; 32]);
            assert_eq!(verify(&theirs, &hello, &another, &proof), Err(Fault::Proof));
            let reflected = std::array::from_fn(|i| answer[PROOF_AT + i]);
            assert_eq!(verify(&theirs, &hello, &answer, &reflected), Err(Fault::Proof));
        }
    }

    #[test]
    fn a_token_on_one_side_is_told_to_both() {
        for (tokens, client_has) in [(["t", ""], true), (["", "t"], false)] {
            let [ours, theirs] = keys(tokens);
            let hello = client(&ours, &[1; 32]);
            let (answer, fault) = server(&theirs, &hello, 5, &[2; 32]);
            assert_eq!(fault, Err(Fault::OneToken { theirs: client_has }));
            assert_eq!(proof(&ours, &hello, &answer), Err(Fault::OneToken { theirs: !client_has }));
        }
    }

    #[test]
    fn every_bit_counts() {
        let [ours, theirs] = keys(["t", "t"]);
        let hello = client(&ours, &[1; 32]);
        let (answer, _) = server(&theirs, &hello, 5, &[2; 32]);
        for bit in 0..SERVER_BYTES * 8 {
            let mut wrong = answer;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(proof(&ours, &hello, &wrong).is_err(), "bit {bit}");
        }
        for bit in CLIENT_HELLO_BYTES * 8..CLIENT_BYTES * 8 {
            let mut wrong = hello;
            wrong[bit / 8] ^= 1 << (bit % 8);
            let (answer, fault) = server(&theirs, &wrong, 5, &[2; 32]);
            assert!(fault.is_err() || proof(&ours, &hello, &answer).is_err(), "bit {bit}");
        }
    }
}
