use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use socket2::Socket;

use super::*;
use crate::net::monitor::client;
use crate::sys::in_a_child;

const LONG: Duration = Duration::from_secs(20);

/// A monitor with contexts that say this, of which an empty one has ended; and the name at which it listens.
fn start(patience: Duration, documents: &[&str]) -> (Monitor, String) {
    let before = local_socket::listening(&own()).unwrap();
    let documents: Vec<String> = documents.iter().map(|text| (*text).to_owned()).collect();
    let monitor = Monitor::with_patience(patience, move || {
        let report = |text: String| -> Report {
            Box::new(move |question| (!text.is_empty()).then(|| format!("{{\"{text}\": \"{question:?}\"}}")))
        };
        documents.iter().cloned().map(report).collect()
    });
    let mut after = local_socket::listening(&own()).unwrap().into_iter().filter(|name| !before.contains(name));
    (monitor.unwrap(), after.next_back().expect("it listens"))
}

/// What the names of monitors of this process begin with.
fn own() -> String {
    format!("{NAMES}{}/", std::process::id())
}

/// Tests of this file run one after the other, so that they find their own monitors.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn connect(name: &str) -> Socket {
    let start = Instant::now();
    loop {
        // Its backlog may be full.
        match local_socket::connect(name) {
            Ok(socket) => return socket,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ask(name: &str, question: Question) -> String {
    let mut socket = connect(name);
    socket.write_all(format!("{}\n", question.text()).as_bytes()).unwrap();
    rest(&mut socket)
}

/// What comes until the end, or until the monitor has broken the connection.
fn rest(socket: &mut Socket) -> String {
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut text = Vec::new();
    match socket.read_to_end(&mut text) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(text).unwrap(),
    }
}

/// Nobody listens any more: a process that another test starts has a copy of all descriptors for a moment.
fn assert_ends(name: &str) {
    let start = Instant::now();
    while !local_socket::listening(name).unwrap().is_empty() {
        assert!(start.elapsed() < LONG, "{name} still listens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no Unix sockets with names")]
fn each_context_that_lives_answers_what_is_asked() {
    let _alone = ALONE.lock().unwrap();
    let (monitor, name) = start(LONG, &["a", "", "b"]);
    let process = std::process::id();
    for (question, shown) in [(Question::Present, "Present"), (Question::Record, "Record")] {
        let expected =
            format!("{{\"process\": {process}, \"contexts\": [{{\"a\": \"{shown}\"}},{{\"b\": \"{shown}\"}}]}}\n");
        assert_eq!(ask(&name, question), expected);
        let found = client::find().unwrap().into_iter().filter(|found| found.owner.process == process);
        let answers: Vec<_> = found.map(|found| found.ask(question, Instant::now() + LONG)).collect();
        assert!(answers.iter().flatten().any(|answer| *answer == expected.as_bytes()), "{answers:?}");
    }
    drop(monitor);
    assert_ends(&name);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no Unix sockets with names")]
fn clients_that_say_nothing_or_rubbish_or_do_not_read_delay_nobody() {
    let _alone = ALONE.lock().unwrap();
    let long = "x".repeat(4 << 20);
    let (_monitor, name) = start(LONG, &[&long]);
    let mut unread = connect(&name);
    unread.write_all(format!("{}\n", Question::Record.text()).as_bytes()).unwrap();
    let mut rubbish: Vec<Socket> = (0..3).map(|_| connect(&name)).collect();
    rubbish[0].write_all(&[0; 4 * MAX_REQUEST_BYTES]).unwrap();
    rubbish[1].write_all(b"gloo_rs 2 present\n").unwrap();
    rubbish[2].write_all(b"\n").unwrap();
    rubbish.iter_mut().for_each(|socket| assert_eq!(rest(socket), ""));
    assert!(ask(&name, Question::Present).len() > long.len());
    let mut dumb: Vec<Socket> = (0..MAX_CLIENTS).map(|_| connect(&name)).collect();
    assert!(ask(&name, Question::Present).len() > long.len());
    // The oldest have made room.
    assert_eq!(rest(&mut dumb[0]), "");
    unread.set_read_timeout(Some(LONG)).unwrap();
    let sent = std::io::copy(&mut unread, &mut std::io::sink());
    assert!(
        sent.is_ok_and(|sent| sent < long.len() as u64),
        "the rest of the answer is kept for a client that is gone"
    );
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no Unix sockets with names")]
fn a_client_has_a_time_limit() {
    let _alone = ALONE.lock().unwrap();
    let (_monitor, name) = start(Duration::from_millis(50), &["a"]);
    let mut socket = connect(&name);
    socket.write_all(b"gloo_rs 1").unwrap();
    assert_eq!(rest(&mut socket), "");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no fork")]
fn a_child_by_fork_does_not_keep_the_socket() {
    let _alone = ALONE.lock().unwrap();
    let (monitor, name) = start(LONG, &["a"]);
    let (release, mut held) = UnixStream::pair().unwrap();
    // SAFETY: the child makes system calls only, and waits for the parent by one.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(release);
        let _ = held.read(&mut [0]);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert!(ask(&name, Question::Present).contains("Present"));
    drop(monitor);
    assert_ends(&name);
    drop(release);
    // SAFETY: the child is this test's, and no status is asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

/// A process of another user is not answered, whatever it asks. Only root can become another user.
#[test]
#[cfg_attr(miri, ignore = "Miri has no fork")]
fn another_user_is_not_answered() {
    let _alone = ALONE.lock().unwrap();
    if local_socket::user() != 0 {
        return eprintln!("not tested: this user cannot become another one");
    }
    let (_monitor, name) = start(LONG, &["a"]);
    let question = format!("{}\n", Question::Record.text());
    let nobody = 65534;
    let is_refused = || {
        // SAFETY: the call takes no pointers, and changes this thread, the only one of the child.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) } == 0;
        let Ok(mut socket) = local_socket::connect(&name) else { return false };
        let known = local_socket::peer(&socket).is_ok_and(|peer| peer.user == 0);
        let _ = socket.set_read_timeout(Some(LONG));
        let written = socket.write_all(question.as_bytes());
        let read = if written.is_ok() { socket.read(&mut [0]) } else { Ok(0) };
        let is_closed = match read {
            Ok(n) => n == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        };
        changed && known && is_closed
    };
    // SAFETY: the child makes system calls, and allocates a little: the only other threads are those of tests, and
    // glibc's allocator works in a child.
    assert!(unsafe { in_a_child(is_refused) });
    assert!(ask(&name, Question::Present).contains("Present"));
}
