//! Asks monitors of this host.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::{NAMES, Question};
use crate::sys::local_socket::{self, Peer};

/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// A monitor that listens on this host, to which a connection was made.
pub struct Found {
    /// Whose it is.
    pub owner: Peer,
    socket: Socket,
}

impl Found {
    /// Whether it answers this process: only those of the same user, and root's.
    pub fn is_permitted(&self) -> bool {
        let own = local_socket::user();
        own == 0 || own == self.owner.user
    }

    /// Its answer, JSON: an object with the process and its contexts. Fails if it has not come whole by `deadline`.
    pub fn ask(mut self, question: Question, deadline: Instant) -> io::Result<Vec<u8>> {
        self.socket.set_write_timeout(Some(left(deadline)?))?;
        self.socket.write_all(format!("{}\n", question.text()).as_bytes())?;
        let (mut answer, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            self.socket.set_read_timeout(Some(left(deadline)?))?;
            match self.socket.read(&mut part) {
                Ok(0) => return Ok(answer),
                Ok(n) if answer.len() + n <= MAX_ANSWER_BYTES => answer.extend_from_slice(&part[..n]),
                Ok(_) => return Err(ErrorKind::FileTooLarge.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connects to the monitors of this host, in its network namespace. One that ends meanwhile is left out, and so is one at
/// which many clients wait.
pub fn find() -> io::Result<Vec<Found>> {
    let connect = |name: &String| {
        let socket = local_socket::connect(name).ok()?;
        Some(Found { owner: local_socket::peer(&socket).ok()?, socket })
    };
    Ok(local_socket::listening(NAMES)?.iter().filter_map(connect).collect())
}
