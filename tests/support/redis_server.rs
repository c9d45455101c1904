//! A redis-server process for one test, on a loopback address of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Killed when dropped, or when the thread that started it ends.
pub struct RedisServer {
    child: Option<Child>,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    address: String,
    port: u16,
    tls: bool,
}

#[allow(dead_code, reason = "each test program uses a part")]
impl RedisServer {
    /// Starts a server with these additional arguments. It saves nothing unless they say so.
    pub fn start(arguments: &[&str]) -> Self {
        Self::create(arguments, false)
    }

    /// Starts a server with TLS only. Its certificate is [`RedisServer::certificate`], which is self-signed.
    pub fn start_with_tls(arguments: &[&str]) -> Self {
        Self::create(arguments, true)
    }

    fn create(arguments: &[&str], tls: bool) -> Self {
        // No other process listens on this address, so a port that is free now is also free after a restart.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.{}.{}.{}", 64 + process / 250 % 64, process % 250, next % 250 + 1);
        let directory = tempfile::tempdir().unwrap();
        if tls {
            make_certificate(&directory, &address);
        }
        let arguments = arguments.iter().map(|argument| argument.to_string()).collect();
        let mut server = Self { child: None, directory, arguments, address, port: 0, tls };
        // A process that listens on all addresses may have the port.
        for _ in 0..20 {
            server.port = std::net::TcpListener::bind((&*server.address, 0)).unwrap().local_addr().unwrap().port();
            if server.try_start() {
                return server;
            }
        }
        panic!("no redis-server could be started: {}", server.log());
    }

    /// What the server prints.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn try_start(&mut self) -> bool {
        let directory = self.directory.path();
        let mut command = Command::new("redis-server");
        let _ = std::fs::remove_file(directory.join("log"));
        command.args(["--bind", &self.address, "--daemonize", "no", "--appendonly", "no", "--save", ""]);
        command.arg("--dir").arg(directory).arg("--logfile").arg(directory.join("log"));
        let port = self.port.to_string();
        if self.tls {
            command.args(["--port", "0", "--tls-port", &port]);
            command.arg("--tls-cert-file").arg(directory.join("cert.pem"));
            command.arg("--tls-key-file").arg(directory.join("key.pem"));
            command.arg("--tls-ca-cert-file").arg(directory.join("cert.pem"));
        } else {
            command.args(["--port", &port]);
        }
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: prctl is async-signal-safe. The server is killed when the thread that starts it ends, even if a test
        // is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().expect("redis-server is needed: scripts/setup.sh installs it");
        let end = Instant::now() + Duration::from_secs(30);
        // The server may listen before it has parsed all its arguments, so wait for its own message.
        while !self.log().contains("Ready to accept connections") {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < end, "redis-server does not come up: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child = Some(child);
        true
    }

    /// `redis[s]://LOGIN@address:port/DATABASE?OPTIONS`, with the certificate to trust.
    pub fn url(&self, login: &str, database: &str, options: &str) -> String {
        let at = if login.is_empty() { "" } else { "@" };
        let (scheme, trust) = match self.tls {
            true => ("rediss", format!("ca={}", self.certificate().display())),
            false => ("redis", String::new()),
        };
        let options = [trust.as_str(), options].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let options = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("{scheme}://{login}{at}{}:{}/{database}{options}", self.address, self.port)
    }

    /// `address:port`
    pub fn address(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    /// The certificate's private key.
    pub fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    fn id(&self) -> i32 {
        self.child.as_ref().unwrap().id() as i32
    }

    pub fn pause(&self) {
        // SAFETY: the process is a child that has not been waited for, and `waitpid` accepts a null status.
        // It waits until the system reports that the process has stopped.
        unsafe {
            assert_eq!(libc::kill(self.id(), libc::SIGSTOP), 0);
            assert_eq!(libc::waitpid(self.id(), std::ptr::null_mut(), libc::WUNTRACED), self.id());
        }
    }

    pub fn progress(&self) {
        // SAFETY: the process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.id(), libc::SIGCONT) }, 0);
    }

    /// Kills the server, so that it cannot save anything.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the server again at the same address, with its saved data.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none());
        assert!(self.try_start(), "redis-server does not start again: {}", self.log());
    }

    /// The reply of a server without TLS to a command in one line, such as `TTL key`: a line, or the string in it.
    pub fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect((&*self.address, self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let Some(bytes) = line.strip_prefix('$').filter(|bytes| *bytes != "-1") else { return line.to_owned() };
        let mut value = vec![0; bytes.parse().unwrap()];
        reader.read_exact(&mut value).unwrap();
        String::from_utf8_lossy(&value).into_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn make_certificate(directory: &tempfile::TempDir, address: &str) {
    let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -subj /CN=redis \
                   -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem -addext";
    let made = Command::new("openssl")
        .args(request.split_whitespace())
        .arg(format!("subjectAltName=IP:{address}"))
        .current_dir(directory.path())
        .output()
        .expect("openssl is needed: scripts/setup.sh installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
