//! `gloo-rs pages`, which the build of the package runs: man pages, and completion for shells.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Shell, generate};

const NAME: &str = "gloo-rs";

#[derive(clap::Args)]
pub struct Args {
    /// The folder `share` of an installation, in whose folders they belong
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes the files of `command`, the whole tool's, and returns the exit status.
pub fn run(args: Args, command: Command) -> u8 {
    crate::end(write(&args.folder, command).map_err(crate::Failure::from))
}

fn write(share: &Path, mut command: Command) -> Result<(), String> {
    let says = |error: std::io::Error| format!("cannot write below {}: {error}", share.display());
    let folder = |name: &str| {
        let folder = share.join(name);
        fs::create_dir_all(&folder).map(|()| folder).map_err(says)
    };
    clap_mangen::generate_to(command.clone(), folder("man/man1")?).map_err(says)?;
    for (shell, place, file) in [
        (Shell::Bash, "bash-completion/completions", NAME.to_owned()),
        (Shell::Zsh, "zsh/site-functions", format!("_{NAME}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{NAME}.fish")),
    ] {
        let mut text = Vec::new();
        generate(shell, &mut command, NAME, &mut text);
        fs::write(folder(place)?.join(file), text).map_err(says)?;
    }
    Ok(())
}
