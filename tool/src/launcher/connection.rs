//! The connection to one host of a job: its ssh process, the frames to and from the helper there, and what the helper
//! has said of itself.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use super::frame::{self, Decoder, kind};
use super::hosts::{Host, Hosts};
use super::output::{Outputs, Target};
use super::rank::{Rank, Stream, set_nonblocking};

/// One host's ssh process (on this host, the helper itself), and the state of its helper.
pub struct Node {
    pub host: Host,
    pub first_rank: usize,
    pub ranks: usize,
    pub ssh: Rank,
    /// The program of that process.
    pub by: String,
    /// Frames to the helper.
    pub into: Option<File>,
    pub pending: Vec<u8>,
    /// Frames from the helper, until it closes.
    pub from: Option<File>,
    pub decoder: Decoder,
    /// ssh's own error output.
    pub errors: Option<Stream>,
    pub port: Option<u16>,
    pub has_task: bool,
    /// Exit status of the helper's part of the job.
    pub done: Option<u8>,
    pub reaped: bool,
    /// Whether ssh has ended and all its output has been read.
    pub ended: bool,
}

impl Node {
    /// `ports` is the range for rank 0's store.
    pub fn start(
        (host, ranks): &(Host, usize),
        first_rank: usize,
        ports: Option<&str>,
        how: &Hosts,
        mask: libc::sigset_t,
    ) -> io::Result<Self> {
        let words = how.command(host);
        let (by, own) = words.split_first().ok_or(io::ErrorKind::NotFound)?;
        // ssh gives up after four intervals without data. Its first value of an option counts, so the caller's options
        // come first.
        let interval = how.lost_after.as_secs().div_ceil(4).max(1);
        let mut command = Command::new(by);
        command.args(own);
        if host.is_here() {
            command.arg("node").args(ports.map(|ports| format!("--port-range={ports}")));
        } else {
            command
                .args(["-T", "-oBatchMode=yes", "-oConnectTimeout=30", "-oServerAliveCountMax=4"])
                .arg(format!("-oServerAliveInterval={interval}"))
                .arg("--")
                .arg(&host.name)
                .arg(remote_command(&how.program, ports));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (ssh, mut child) = Rank::start(&mut command, mask, None)?;
        let pipe = |pipe: Option<OwnedFd>| -> io::Result<OwnedFd> {
            let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
            set_nonblocking(pipe.as_raw_fd())?;
            Ok(pipe)
        };
        Ok(Self {
            host: host.clone(),
            first_rank,
            ranks: *ranks,
            ssh,
            by: by.display().to_string(),
            into: Some(pipe(child.stdin.take().map(Into::into))?.into()),
            pending: Vec::new(),
            from: Some(pipe(child.stdout.take().map(Into::into))?.into()),
            decoder: Decoder::after(frame::MAGIC),
            errors: Some(Stream::new(pipe(child.stderr.take().map(Into::into))?, Target::Stderr, "", None)?),
            port: None,
            has_task: false,
            done: None,
            reaped: false,
            ended: false,
        })
    }

    /// The host for messages: `node1 (ranks 2 to 3)`.
    pub fn name(&self) -> String {
        let last = self.first_rank + self.ranks - 1;
        let ranks =
            if self.ranks == 1 { format!("rank {last}") } else { format!("ranks {} to {last}", self.first_rank) };
        format!("{} ({ranks})", self.host.name)
    }

    pub fn send(&mut self, kind: u8, payload: &[u8]) {
        self.pending.extend(frame::encode(kind, payload));
        self.flush();
    }

    /// Writes as much as the pipe accepts. The end of the helper is detected by the end of its output.
    pub fn flush(&mut self) {
        let Some(into) = &mut self.into else { return self.pending.clear() };
        let mut written = 0;
        while written < self.pending.len() {
            match into.write(&self.pending[written..]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.into = None;
                    return self.pending.clear();
                }
            }
        }
        self.pending.drain(..written);
    }

    /// Whether the next frame is output for which there is no room. The frames behind it wait as well, so that they
    /// stay in order.
    pub fn is_held_up(&self, outputs: &Outputs) -> bool {
        match self.decoder.next_kind() {
            Some(kind::OUTPUT) => !outputs.has_room(Target::Stdout),
            Some(kind::ERROR) => !outputs.has_room(Target::Stderr),
            _ => false,
        }
    }

    /// Ends the connection; the helper then kills its ranks.
    pub fn cut(&mut self) {
        self.into = None;
        if !self.reaped {
            self.ssh.signal_group(libc::SIGKILL);
        }
    }

    /// Ends the connection, and drops what has come and was not executed.
    pub fn abandon(&mut self) {
        self.cut();
        self.from = None;
        self.decoder = Decoder::default();
    }
}

/// The command for a host's shell. All shells take text in single quotes literally, except for a single quote.
fn remote_command(program: &str, ports: Option<&str>) -> String {
    let quoted = |word: &str| {
        let plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,".contains(&byte));
        if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let ports = ports.map_or(String::new(), |ports| format!(" --port-range {}", quoted(ports)));
    format!("exec {} node{ports}", quoted(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reaches_a_shell_as_it_is() {
        let of = |program: &str| remote_command(program, None);
        assert_eq!(of("/opt/gloo_rs-1.0/bin/gloo-rs"), "exec /opt/gloo_rs-1.0/bin/gloo-rs node");
        for program in ["/a b/x", "/it's/$HOME/`x`", "/ü;&"] {
            let command = of(program).replace("exec ", "printf %s ").replace(" node", "");
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), program);
        }
    }
}
