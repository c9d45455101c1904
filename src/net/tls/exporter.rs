//! `tls-exporter` of RFC 9266, out of what rustls logs: its unbuffered connections do not export keying material.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use rustls::{CommonState, KeyLog};

/// What both sides of a session know and nobody else does.
pub type Binding = [u8; 32];

const LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// The exporter of one connection.
#[derive(Default)]
pub struct Exporter(Mutex<Vec<u8>>);

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

impl KeyLog for Exporter {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if self.will_log(label) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = secret.to_vec();
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == "EXPORTER_SECRET"
    }
}

impl Exporter {
    /// Returns the exported keying material of RFC 8446, 7.5, with an empty context; `None` until the handshake is
    /// over. `connection` is the one that logs here.
    pub fn binding(&self, connection: &CommonState) -> Option<Binding> {
        if connection.is_handshaking() {
            return None;
        }
        let suite = connection.negotiated_cipher_suite()?.tls13()?;
        let secret = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = suite.common.hash_provider.hash(&[]);
        let expander = |secret: &[u8]| suite.hkdf_provider.expander_for_okm(&OkmBlock::new(secret));
        let mut derived = vec![0; secret.len()];
        expand_label(&*expander(&secret), LABEL, empty.as_ref(), &mut derived)?;
        let mut binding = Binding::default();
        expand_label(&*expander(&derived), b"exporter", empty.as_ref(), &mut binding)?;
        Some(binding)
    }
}

/// HKDF-Expand-Label of RFC 8446, 7.1.
fn expand_label(expander: &dyn HkdfExpander, label: &[u8], context: &[u8], output: &mut [u8]) -> Option<()> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(output.len()).ok()?.to_be_bytes();
    let [label_length, context_length] = [PREFIX.len() + label.len(), context.len()].map(|n| u8::try_from(n).ok());
    let info = [&length[..], &[label_length?], PREFIX, label, &[context_length?], context];
    expander.expand_slice(&info, output).ok()
}
