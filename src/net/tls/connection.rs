//! One connection of rustls without buffers, which does one thing at a time.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, Error as TlsError};

use super::buffer::Buffer;
use super::sink::Sink;

/// Plain bytes of the longest record, and how many more it takes at most.
pub(super) const RECORD_BYTES: usize = 16 << 10;
const RECORD_OVERHEAD_BYTES: usize = 64;

/// A connection without buffers.
pub(super) enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    /// What client and server have in common.
    pub fn state(&self) -> &CommonState {
        match self {
            Self::Client(tls) => tls,
            Self::Server(tls) => tls,
        }
    }

    /// Does one thing with `records`, or executes the order: bytes that were decrypted go into `sink`, those that it
    /// does not take into `plain`, and what is to be sent into `outgoing`. Returns how many bytes of the records are
    /// used up, and what it was.
    pub fn step(
        &mut self,
        records: &mut [u8],
        order: Order<'_>,
        sink: &mut dyn Sink,
        plain: &mut Buffer,
        outgoing: &mut Buffer,
    ) -> (usize, Result<Step, TlsError>) {
        match self {
            Self::Client(tls) => handle(tls.process_tls_records(records), order, sink, plain, outgoing),
            Self::Server(tls) => handle(tls.process_tls_records(records), order, sink, plain, outgoing),
        }
    }
}

/// What a connection is asked to do once it has nothing else to do.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    /// Nothing.
    Rest,
    /// Encrypt these bytes.
    Encrypt(&'a [u8]),
    /// Say that nothing follows.
    Close,
}

/// What a connection has done.
pub(super) enum Step {
    /// This many decrypted bytes were taken, and others may follow.
    Decrypted(usize),
    /// Something of the session itself.
    Own,
    /// The peer has ended the session.
    Ended,
    /// There is no whole record.
    Starved,
    /// The order is executed.
    Done,
}

/// Executes what a connection asks for. Returns how many bytes of its records are used up, and what it was.
fn handle<T>(
    status: UnbufferedStatus<'_, '_, T>,
    order: Order<'_>,
    sink: &mut dyn Sink,
    plain: &mut Buffer,
    outgoing: &mut Buffer,
) -> (usize, Result<Step, TlsError>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut taken = 0;
            loop {
                match traffic.next_record() {
                    None => break Ok(Step::Decrypted(taken)),
                    Some(Err(error)) => break Err(error),
                    Some(Ok(record)) => {
                        let count = sink.take(record.payload);
                        taken += count;
                        plain.push(&record.payload[count..]);
                        discard += record.discard;
                    }
                }
            }
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let mut room = RECORD_BYTES;
            loop {
                match data.encode(outgoing.room(room)) {
                    Ok(count) => {
                        outgoing.fill(count);
                        break Ok(Step::Own);
                    }
                    Err(EncodeError::InsufficientSize(needed)) => room = needed.required_size,
                    Err(error) => break Err(TlsError::General(error.to_string())),
                }
            }
        }
        // The data is in the buffer, which is sent in its order.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Own)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Step::Ended),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let records = |bytes: usize| bytes + (bytes.div_ceil(RECORD_BYTES) + 1) * RECORD_OVERHEAD_BYTES;
            let encrypted = match order {
                Order::Rest => return (discard, Ok(Step::Starved)),
                Order::Encrypt(bytes) => traffic.encrypt(bytes, outgoing.room(records(bytes.len()))),
                Order::Close => traffic.queue_close_notify(outgoing.room(records(0))),
            };
            encrypted.map_err(|error| TlsError::General(error.to_string())).map(|count| {
                outgoing.fill(count);
                Step::Done
            })
        }
        Ok(_) => Ok(Step::Starved),
        Err(error) => Err(error),
    };
    (discard, step)
}
