//! One value from rank 0 to all, over the wire protocol of PMI version 1 (MPICH's, Intel MPI's and other launchers').
//!
//! The launcher leaves every process one end of a socket, PMI_FD. A request is a line, `cmd=NAME key=value ...`, and so is its
//! answer. This does not send `init` and `finalize`: a process that has sent `init` must end with `finalize`, which closes the
//! socket, and then an MPI in the same process could not start, nor could a program that the process executes next.

use std::io::{ErrorKind as IoErrorKind, IoSlice, IoSliceMut};
use std::os::fd::RawFd;

use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::support::{Deadline, seconds};
use crate::sys;

/// More than any answer has: PMI limits values to 1024 bytes.
const LONGEST_ANSWER: usize = 8 << 10;

/// This process's end of the launcher's socket. It stays the process's own, and open.
pub struct Pmi<'a> {
    fd: RawFd,
    deadline: &'a Deadline,
}

impl<'a> Pmi<'a> {
    /// `number`: the value of PMI_FD.
    pub fn new(number: &str, deadline: &'a Deadline) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("the environment variable PMI_FD={number:?} {why}"));
        let fd = number.parse().ok().filter(|fd| *fd >= 0).ok_or_else(|| wrong("is not a descriptor's number"))?;
        // Who ends MPI closes it, and its number becomes another file's, which must not be written to.
        let stream = option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM);
        if !stream || option(fd, libc::SO_DOMAIN) != Some(libc::AF_UNIX) {
            return Err(wrong(
                "is not the launcher's socket; was it closed, by MPI_Finalize or on the way to this program?",
            ));
        }
        Ok(Self { fd, deadline })
    }

    /// Gives `value` from rank 0, which has one, to all. Collective over the job's processes. A launcher keeps what it was
    /// told, and `name` may be there from a program that the same processes ran before: so they are numbered.
    pub fn share(&self, name: &str, value: Option<&str>) -> Result<String> {
        let space = self.ask("get_my_kvsname", "")?;
        let space = field(&space, "kvsname").ok_or_else(|| self.odd("get_my_kvsname", &space))?;
        let get = |number: usize| -> Result<Option<String>> {
            let answer = self.ask("get", &format!(" kvsname={space} key={name}-{number}"))?;
            let found = field(&answer, "rc").is_none_or(|rc| rc == "0");
            Ok(field(&answer, "value").filter(|_| found).map(str::to_owned))
        };
        let mut next = 0;
        if let Some(value) = value {
            while get(next)?.is_some() {
                next += 1;
            }
            let answer = self.ask("put", &format!(" kvsname={space} key={name}-{next} value={value}"))?;
            if field(&answer, "rc").is_some_and(|rc| rc != "0") {
                return Err(self.odd("put", &answer));
            }
        }
        self.ask("barrier_in", "")?;
        if let Some(value) = value {
            return Ok(value.to_owned());
        }
        let mut last = None;
        while let Some(found) = get(next)? {
            last = Some(found);
            next += 1;
        }
        last.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("PMI: rank 0 has not put {name}-0")))
    }

    /// The launcher's answer to `cmd=command` with `arguments`.
    fn ask(&self, command: &str, arguments: &str) -> Result<String> {
        let failed = |error| Error::io(format_args!("PMI: cannot ask the launcher for {command}"), &error);
        let request = format!("cmd={command}{arguments}\n");
        let mut rest = request.as_bytes();
        while !rest.is_empty() {
            match sys::send(self.fd, &[IoSlice::new(rest)]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == IoErrorKind::WouldBlock => self.await_ready(libc::POLLOUT, command)?,
                Err(error) => return Err(failed(error)),
            }
        }
        let mut answer = Vec::new();
        // The launcher says nothing unasked, so what comes is the answer and no more.
        while answer.last() != Some(&b'\n') {
            let mut bytes = [0; 1024];
            match sys::receive(self.fd, &mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => return Err(failed(IoErrorKind::UnexpectedEof.into())),
                Ok(read) => answer.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == IoErrorKind::WouldBlock => self.await_ready(libc::POLLIN, command)?,
                Err(error) => return Err(failed(error)),
            }
            if answer.len() > LONGEST_ANSWER {
                return Err(self.odd(command, &String::from_utf8_lossy(&answer[..64])));
            }
        }
        String::from_utf8(answer).map_err(|answer| self.odd(command, &String::from_utf8_lossy(answer.as_bytes())))
    }

    fn await_ready(&self, events: libc::c_short, command: &str) -> Result<()> {
        let left = self.deadline.remaining();
        if left.is_zero() {
            let waited = seconds(self.deadline.elapsed());
            let why = match command {
                "barrier_in" => "not all of the job's processes have called gloo_rs_launch_from_env",
                _ => "the launcher did not answer",
            };
            return Err(Error::new(ErrorKind::Timeout, format!("PMI: {command}: {why} after {waited}")));
        }
        let mut poll = libc::pollfd { fd: self.fd, events, revents: 0 };
        let left = left.as_millis().min(60_000) as i32 + 1;
        // SAFETY: one entry, as said. If a signal interrupts the call, the caller tries again.
        unsafe { libc::poll(&mut poll, 1, left) };
        Ok(())
    }

    fn odd(&self, command: &str, answer: &str) -> Error {
        Error::new(ErrorKind::Mismatch, format!("PMI: the launcher answered {command} with {:?}", answer.trim_end()))
    }
}

/// The value of `name` in a line of `name=value`, separated by blanks.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// A socket's option that is an int, if `fd` is a socket.
fn option(fd: RawFd, name: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the call writes at most `length` bytes, an int, and refuses a number that is no socket's.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut length) };
    (result == 0).then_some(value)
}
