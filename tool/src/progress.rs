//! A progress bar: for people only, where standard error is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of so many steps, or what shows that a command still works if their number is not known.
pub struct Progress(ProgressBar);

impl Progress {
    /// `shown`: whether this process shows one at all; of the ranks of a job, only one does.
    pub fn of(steps: u64, shown: bool) -> Self {
        Self::new(ProgressBar::with_draw_target(Some(steps), target(shown)), "{msg:>28} {wide_bar} {percent:>3} %")
    }

    /// Shows the progress of work whose steps cannot be counted.
    pub fn unknown(message: String) -> Self {
        let bar = Self::new(ProgressBar::with_draw_target(None, target(true)), "{spinner} {msg} {elapsed}");
        bar.say(message);
        if !bar.0.is_hidden() {
            bar.0.enable_steady_tick(Duration::from_millis(100));
        }
        bar
    }

    fn new(bar: ProgressBar, template: &str) -> Self {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// What is being done.
    pub fn say(&self, message: String) {
        self.0.set_message(message);
    }

    /// Shows that `steps` steps are done, and that `message` is next.
    pub fn reach(&self, steps: u64, message: String) {
        self.0.set_position(steps);
        self.say(message);
    }

    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Hides the bar while other output is written.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

impl Drop for Progress {
    /// Leaves nothing of it on the terminal.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target(shown: bool) -> ProgressDrawTarget {
    let people = shown && std::io::stderr().is_terminal();
    if people { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}
