//! The job's token, and proofs of knowledge of a secret.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The name of the environment variable with the job's token.
pub const TOKEN_VARIABLE: &str = "GLOO_RS_TOKEN";

/// A secret shared by all processes of a job; empty if there is none. It never appears in messages, logs or `Debug`
/// output.
#[derive(Clone)]
pub struct JobToken(Arc<[u8]>);

impl JobToken {
    /// A token with these bytes; empty means no token.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// No token.
    pub fn none() -> Self {
        Self::new([])
    }

    /// The token in the environment variable `GLOO_RS_TOKEN`; none if it is empty or not set.
    pub fn from_environment() -> Self {
        std::env::var_os(TOKEN_VARIABLE).map_or_else(Self::none, |value| Self::new(value.as_encoded_bytes()))
    }

    /// A random token of 256 bits, as hexadecimal text for an environment variable.
    pub fn random_text() -> std::io::Result<String> {
        Ok(crate::sys::random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether there is no token.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "JobToken(none)" } else { "JobToken(hidden)" })
    }
}

/// An HMAC-SHA256 tag made with a [`SecretKey`].
pub type Proof = [u8; 32];

/// A key derived from the job's token and a secret of one side. Two sides can verify each other's proofs only if both
/// have it.
#[derive(Clone)]
pub struct SecretKey {
    bytes: Proof,
    has_token: bool,
}

impl SecretKey {
    /// Derives a key. `purpose` separates keys derived from the same token.
    pub fn derive(token: &JobToken, purpose: &str, secret: &[u8]) -> Self {
        Self { bytes: finish(hmac(&token.0, purpose, &[secret])), has_token: !token.is_none() }
    }

    /// Returns this key for proofs that hold only in the session in which both sides know `binding`; the key itself if
    /// that is empty.
    pub fn bound(&self, binding: &[u8]) -> Self {
        if binding.is_empty() {
            return self.clone();
        }
        Self { bytes: self.prove("gloo_rs session", &[binding]), has_token: self.has_token }
    }

    /// Whether the job has a token.
    pub fn has_token(&self) -> bool {
        self.has_token
    }

    /// The proof that its author knows this key and has seen `parts`. `label` separates the proofs of different roles.
    pub fn prove(&self, label: &str, parts: &[&[u8]]) -> Proof {
        finish(hmac(&self.bytes, label, parts))
    }

    /// Whether `proof` is the result of [`SecretKey::prove`] for the same arguments. Takes constant time.
    pub fn verify(&self, label: &str, parts: &[&[u8]], proof: &Proof) -> bool {
        hmac(&self.bytes, label, parts).verify(proof.into()).is_ok()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(hidden)")
    }
}

/// An identifier for `secret` that does not reveal it.
pub fn fingerprint(secret: &[u8]) -> [u8; 16] {
    let whole = finish(hmac(secret, "gloo_rs handle", &[]));
    std::array::from_fn(|i| whole[i])
}

fn hmac(key: &[u8], label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC accepts keys of any length.
    let mut hmac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("any length");
    hmac.update(label.as_bytes());
    // Labels contain no zero byte, so different labels and parts cannot yield the same input.
    hmac.update(&[0]);
    parts.iter().for_each(|part| hmac.update(part));
    hmac
}

fn finish(hmac: Hmac<Sha256>) -> Proof {
    hmac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_hmac_sha256() {
        // RFC 4231, test case 2.
        let plain = |data: &[u8]| {
            let mut hmac = <Hmac<Sha256> as KeyInit>::new_from_slice(b"Jefe").unwrap();
            hmac.update(data);
            finish(hmac)
        };
        let hex: String = plain(b"what do ya want for nothing?").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(finish(hmac(b"Jefe", "label", &[b"one", b"two"])), plain(b"label\0onetwo"));
    }

    #[test]
    fn a_key_depends_on_token_purpose_and_secret() {
        let base = SecretKey::derive(&JobToken::new("t"), "p", b"s");
        assert!(base.verify("l", &[b"x"], &base.prove("l", &[b"x"])));
        assert!(!base.verify("m", &[b"x"], &base.prove("l", &[b"x"])));
        assert!(!base.verify("l", &[b"y"], &base.prove("l", &[b"x"])));
        for other in [
            SecretKey::derive(&JobToken::new("u"), "p", b"s"),
            SecretKey::derive(&JobToken::none(), "p", b"s"),
            SecretKey::derive(&JobToken::new("t"), "q", b"s"),
            SecretKey::derive(&JobToken::new("t"), "p", b"r"),
        ] {
            assert!(!other.verify("l", &[b"x"], &base.prove("l", &[b"x"])));
        }
    }

    #[test]
    fn debug_output_does_not_reveal_secrets() {
        let token = JobToken::new("swordfish");
        let key = SecretKey::derive(&token, "p", b"s");
        let shown = format!("{token:?} {key:?} {:?}", JobToken::none());
        assert_eq!(shown, "JobToken(hidden) SecretKey(hidden) JobToken(none)");
        assert_eq!((key.has_token(), JobToken::new("").is_none()), (true, true));
    }
}
