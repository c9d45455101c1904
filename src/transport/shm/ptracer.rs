//! Permission for the other ranks' processes to read the memory of this one. Yama gives it by default to a process's
//! ancestors alone, and asks each process whom else it lets trace it.

use std::io;

use crate::error::{Error, Result, in_words};
use crate::sys::process::{self, Tracers};

/// The environment variable that says whom this process lets trace it, for devices whose options do not say.
pub const VARIABLE: &str = "GLOO_RS_PTRACER";

/// Whom `option`, called `ptracer`, or else the environment names; `None` if nobody.
pub fn choose(option: Option<&str>) -> Result<Option<Tracers>> {
    match (option, std::env::var_os(VARIABLE).filter(|value| !value.is_empty())) {
        (Some(text), _) => parse("ptracer", text),
        (None, Some(value)) => parse(VARIABLE, &value.to_string_lossy()),
        (None, None) => Ok(None),
    }
}

fn parse(source: &str, text: &str) -> Result<Option<Tracers>> {
    let number = || text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i32>().ok()).flatten();
    match (text, number()) {
        ("any", _) => Ok(Some(Tracers::Any)),
        (_, Some(0)) => Ok(None),
        (_, Some(process)) => Ok(Some(Tracers::Descendants(process.unsigned_abs()))),
        _ => Err(Error::invalid(format!(
            "{source} is {text:?}; it must be the number of a process from which this one descends, any, or 0"
        ))),
    }
}

/// Lets `tracers` trace this process, if the system asks for that; then returns what was permitted, or why not. This is
/// never taken back: the program may have named others since, and they would be lost.
pub fn permit(tracers: Tracers) -> Option<String> {
    ask(tracers, process::ptrace_scope(), process::descends_from, process::set_tracers)
}

/// [`permit`] on a system with this `kernel.yama.ptrace_scope`.
fn ask(
    tracers: Tracers,
    scope: Option<u32>,
    descends_from: impl FnOnce(u32) -> bool,
    set: impl FnOnce(Tracers) -> io::Result<()>,
) -> Option<String> {
    let scope = scope.filter(|scope| *scope > 0)?;
    if scope > 1 {
        return Some(format!("{VARIABLE} has no effect, since kernel.yama.ptrace_scope is {scope}"));
    }
    let whom = match tracers {
        // The number is of another host, another namespace, or a launcher that has ended: by now it may be anybody's.
        Tracers::Descendants(process) if !descends_from(process) => {
            return Some(format!("{VARIABLE} has no effect: this process does not descend from process {process}"));
        }
        Tracers::Descendants(process) => format!("process {process} and all that descend from it"),
        Tracers::Any => "all processes of this user".to_owned(),
    };
    Some(match set(tracers) {
        Ok(()) => format!("{whom} may read the memory of this process, and trace it ({VARIABLE})"),
        Err(e) => format!("cannot let {whom} read the memory of this process: prctl(PR_SET_PTRACER): {}", in_words(&e)),
    })
}

/// Says for messages why the memory of another process cannot be read, and what helps.
pub fn why_unreadable(error: &io::Error) -> String {
    let is_restricted = error.raw_os_error() == Some(libc::EPERM) && process::ptrace_scope() == Some(1);
    let hint = if is_restricted {
        format!("; {VARIABLE} on all ranks permits it, if no later call of prctl(PR_SET_PTRACER) takes that back")
    } else {
        String::new()
    };
    process::why_unreadable(error) + &hint
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_may_trace_this_process_is_a_process_all_or_none() {
        let parsed = |text: &str| parse(VARIABLE, text);
        for (text, tracers) in [
            ("any", Some(Tracers::Any)),
            ("0", None),
            ("1", Some(Tracers::Descendants(1))),
            ("2147483647", Some(Tracers::Descendants(i32::MAX as u32))),
        ] {
            assert_eq!(parsed(text).unwrap(), tracers, "{text}");
        }
        for text in ["", "-1", "+1", "ANY", "1 ", "2147483648", "99999999999999999999"] {
            let error = parsed(text).unwrap_err();
            assert!(error.message().starts_with(&format!("{VARIABLE} is {text:?}; it must be ")), "{error}");
        }
        assert_eq!(choose(Some("any")).unwrap(), Some(Tracers::Any));
        assert!(choose(Some("some")).unwrap_err().message().starts_with("ptracer is \"some\""));
    }

    /// What is asked of the kernel, and what is said, where this process descends from process 7.
    fn requested(tracers: Tracers, scope: Option<u32>, answer: io::Result<()>) -> (Option<Tracers>, Option<String>) {
        let requested = Cell::new(None);
        let set = |tracers| {
            requested.set(Some(tracers));
            answer
        };
        let said = ask(tracers, scope, |process| process == 7, set);
        (requested.get(), said)
    }

    #[test]
    fn the_kernel_is_asked_where_that_has_an_effect() {
        for tracers in [Tracers::Any, Tracers::Descendants(7)] {
            for scope in [None, Some(0)] {
                assert_eq!(requested(tracers, scope, Ok(())), (None, None), "nothing is forbidden");
            }
            for scope in [2, 3] {
                let (requested, said) = requested(tracers, Some(scope), Ok(()));
                assert!(requested.is_none() && said.unwrap().ends_with(&format!("ptrace_scope is {scope}")));
            }
            let (requested, said) = requested(tracers, Some(1), Ok(()));
            assert_eq!(requested, Some(tracers));
            let whom = if tracers == Tracers::Any { "all processes of this user" } else { "process 7 and all that" };
            assert!(said.as_ref().unwrap().starts_with(whom), "{said:?}");
        }
        let (_, said) = requested(Tracers::Any, Some(1), Err(io::Error::from_raw_os_error(libc::EINVAL)));
        assert!(said.unwrap().contains("prctl(PR_SET_PTRACER): "));
    }

    /// The number of another process, after its own has ended.
    #[test]
    fn a_process_from_which_this_one_does_not_descend_gets_no_permission() {
        let (requested, said) = requested(Tracers::Descendants(8), Some(1), Ok(()));
        assert_eq!(requested, None);
        assert!(said.unwrap().ends_with("does not descend from process 8"));
    }
}
