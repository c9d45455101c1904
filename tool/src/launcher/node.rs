//! The helper on another host: starts its part of a job there, and executes the frames that the launcher sends to its
//! standard input. If that is closed, or receives nothing for too long, the launcher or the connection is lost, and the
//! ranks are killed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::frame::{self, Decoder, Hello, Task, kind};
use super::output::Target;
use super::rank::set_nonblocking;
use super::{Failed, KILLED_ENDS_WITHIN, Running, readable};
use crate::Failure;
use gloo_rs::net::ports::PORT_RANGE;

/// The maximum number of bytes of one read.
const READ_BYTES: usize = 16 << 10;

/// The launcher, which sends frames to standard input.
pub struct Control {
    decoder: Decoder,
    heard: Instant,
    lost_after: Duration,
    /// Whether the job and the launcher are stopped (SIGTSTP).
    stopped: bool,
    input: Option<Input>,
}

/// Rank 0's standard input.
struct Input {
    pipe: File,
    pending: Vec<u8>,
    ended: bool,
}

#[derive(clap::Args)]
pub struct Args {
    /// The ports for rank 0's store, as in GLOO_RS_PORT_RANGE
    #[arg(long, value_name = "RANGE")]
    port_range: Option<OsString>,
}

/// Runs the helper; returns its exit status, which the launcher does not need.
pub fn run(args: Args) -> u8 {
    match serve(args) {
        Ok(code) => code,
        Err(error) => crate::fail(&format!("node: {error}"), 1),
    }
}

fn serve(args: Args) -> io::Result<u8> {
    let range = args.port_range.or_else(|| std::env::var_os(PORT_RANGE));
    let port = super::port::free(Ipv4Addr::UNSPECIFIED, range)?;
    let hello = Hello { version: env!("CARGO_PKG_VERSION").into(), port };
    let mut stdout = io::stdout();
    stdout.write_all(frame::MAGIC)?;
    stdout.write_all(&frame::encode_value(kind::HELLO, &hello)?)?;
    stdout.flush()?;
    let Some((task, decoder)) = read_task()? else { return Ok(1) };
    let Task { job, directory, lost_after } = task;
    let control = Control { decoder, heard: Instant::now(), lost_after, stopped: false, input: None };
    let result = std::env::set_current_dir(&directory)
        .map_err(|error| Failure::from(format!("cannot change to the directory {}: {error}", directory.display())))
        .and_then(|()| super::start(&job, Some(control)));
    let Failure { message, code } = match result {
        Ok(ended) => return Ok(ended.code),
        Err(failure) => failure,
    };
    let host = job.part.host.as_ref().map_or("", |(host, _)| host);
    let message = format!("gloo-rs: host {host}: {message}\n");
    stdout.write_all(&frame::encode(kind::ERROR, message.as_bytes()))?;
    stdout.write_all(&frame::encode(kind::DONE, &[code]))?;
    stdout.flush()?;
    Ok(code)
}

/// Waits for the launcher's task; `None` if the launcher ends before.
fn read_task() -> io::Result<Option<(Task, Decoder)>> {
    let mut decoder = Decoder::default();
    let mut bytes = [0; READ_BYTES];
    loop {
        while let Some((kind, payload)) = decoder.next()? {
            if kind == kind::TASK {
                return Ok(Some((serde_json::from_slice(&payload)?, decoder)));
            }
        }
        match read(&mut bytes)? {
            0 => return Ok(None),
            read => decoder.push(&bytes[..read]),
        }
    }
}

/// Reads standard input without a buffer, which would hide bytes from `poll`.
pub(super) fn read(bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and the length are those of `bytes`.
        let read = unsafe { libc::read(libc::STDIN_FILENO, bytes.as_mut_ptr().cast(), bytes.len()) };
        if let Ok(read) = usize::try_from(read) {
            return Ok(read);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl Control {
    /// `pipe` is rank 0's standard input.
    pub fn feed(&mut self, pipe: OwnedFd) -> io::Result<()> {
        set_nonblocking(pipe.as_raw_fd())?;
        self.input = Some(Input { pipe: pipe.into(), pending: Vec::new(), ended: false });
        Ok(())
    }

    /// When the launcher counts as lost unless it sends a frame.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.stopped).then(|| self.heard + self.lost_after)
    }

    /// The descriptors and events to poll for.
    pub fn polls(&self) -> impl Iterator<Item = libc::pollfd> + use<> {
        let waiting = self.input.as_ref().filter(|input| !input.pending.is_empty());
        let input = waiting.map(|i| libc::pollfd { fd: i.pipe.as_raw_fd(), events: libc::POLLOUT, revents: 0 });
        [readable(libc::STDIN_FILENO)].into_iter().chain(input)
    }

    /// Whether standard input is readable, which it is also at its end.
    fn is_input_readable() -> bool {
        let mut poll = readable(libc::STDIN_FILENO);
        // SAFETY: `poll` is one entry, as the count says, and lives until the call returns.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }

    /// Writes as much input to rank 0 as its pipe accepts; returns how many bytes that was.
    fn pump(&mut self) -> usize {
        let Some(input) = &mut self.input else { return 0 };
        let mut taken = 0;
        while taken < input.pending.len() {
            match input.pipe.write(&input.pending[taken..]) {
                Ok(written) => taken += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Rank 0 has closed its input; the rest is discarded.
                Err(_) => taken = input.pending.len(),
            }
        }
        input.pending.drain(..taken);
        if input.ended && input.pending.is_empty() {
            self.input = None;
        }
        taken
    }
}

impl Running {
    /// Executes the launcher's frames.
    pub(super) fn listen(&mut self) {
        let Some(control) = &mut self.control else { return };
        if control.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
            return self.lose_launcher();
        }
        if Control::is_input_readable() {
            let mut bytes = [0; READ_BYTES];
            match read(&mut bytes) {
                Ok(read) if read > 0 => control.decoder.push(&bytes[..read]),
                _ => return self.lose_launcher(),
            }
            control.heard = Instant::now();
        }
        loop {
            let Some(control) = &mut self.control else { return };
            match control.decoder.next() {
                Ok(Some((kind, payload))) => self.obey(kind, &payload),
                Ok(None) => break,
                Err(_) => return self.lose_launcher(),
            }
        }
        let taken = self.control.as_mut().map_or(0, Control::pump);
        self.take_input(taken);
    }

    /// Tells the launcher that rank 0 needs so many bytes of its input no longer.
    fn take_input(&mut self, bytes: usize) {
        if bytes > 0 {
            self.outputs.push(Target::Frames(kind::TAKEN), &(bytes as u32).to_le_bytes());
        }
    }

    fn obey(&mut self, kind: u8, payload: &[u8]) {
        let Some(control) = &mut self.control else { return };
        control.stopped = kind == kind::SIGNAL && payload == [libc::SIGTSTP as u8];
        match (kind, payload) {
            (kind::SIGNAL, &[signal]) => self.pass_on(i32::from(signal)),
            (kind::END, _) if self.failed.is_none() => self.end_all((128 + libc::SIGTERM) as u8),
            (kind::INPUT, bytes) => {
                if let Some(input) = &mut control.input {
                    input.pending.extend_from_slice(bytes);
                    input.ended |= bytes.is_empty();
                } else {
                    self.take_input(bytes.len());
                }
            }
            _ => {}
        }
    }

    /// Kills the ranks at once: their end cannot be reported any more.
    fn lose_launcher(&mut self) {
        self.control = None;
        self.streams.clear();
        self.outputs.discard();
        self.failed = Some(Failed { code: 1, deadline: Instant::now() + KILLED_ENDS_WITHIN, killed: true });
        self.signal_ranks(libc::SIGKILL);
    }
}
