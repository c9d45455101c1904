//! Rank and size of this process in its job, from each launcher's variables.

use super::nodes;
use super::variables::Variables;
use crate::error::{Error, Result};

/// The launcher that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `gloo-rs run`, torchrun, or a user that sets RANK and WORLD_SIZE.
    Variables,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A launcher that speaks PMI: MPICH's and Intel MPI's mpiexec (Hydra), and others.
    Pmi,
    /// Slurm's srun.
    Slurm,
}

/// The variables of one launcher. Of a list, the first that is set counts.
struct Names {
    launcher: Launcher,
    title: &'static str,
    rank: &'static str,
    /// Must be set too: distinguishes this launcher from one that it runs within.
    required: &'static str,
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

impl Names {
    /// Whether this launcher has started the process.
    fn are_set(&self, variables: &Variables<'_>) -> Result<bool> {
        if variables.text(self.rank)?.is_none() {
            return Ok(false);
        }
        let required = variables.text(self.required)?;
        Ok(match self.launcher {
            // Steps that srun did not start have a number of Slurm's own, or its name, such as `batch`.
            Launcher::Slurm => {
                required.is_some_and(|step| step.parse().is_ok_and(|step: u32| step < FIRST_SLURM_STEP_OF_ITS_OWN))
            }
            _ => required.is_some(),
        })
    }
}

/// In order of precedence; the innermost launcher comes first: mpirun and torchrun are started within a Slurm job,
/// rarely the other way round. Hydra can start its helpers by srun, and srun can set PMI's variables, but only Hydra
/// sets MPI_LOCALNRANKS.
const LAUNCHERS: [Names; 5] = [
    Names {
        launcher: Launcher::Variables,
        title: "gloo-rs run, torchrun",
        rank: "RANK",
        required: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    Names {
        launcher: Launcher::OpenMpi,
        title: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        required: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Pmi,
        title: "MPICH, Intel MPI",
        rank: "PMI_RANK",
        required: "MPI_LOCALNRANKS",
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
    },
    Names {
        launcher: Launcher::Slurm,
        title: "Slurm's srun",
        rank: "SLURM_PROCID",
        required: "SLURM_STEP_ID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[], // in SLURM_STEP_TASKS_PER_NODE
    },
    Names {
        launcher: Launcher::Pmi,
        title: "PMI",
        rank: "PMI_RANK",
        required: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_rank: &["PMI_LOCAL_RANK"],
        local_size: &["PMI_LOCAL_SIZE"],
    },
];

/// Slurm uses step ids from here on for steps that srun did not start, such as a batch script.
const FIRST_SLURM_STEP_OF_ITS_OWN: u32 = 0xffff_fff0;

/// The rank of a process in its job and on its host, and the numbers of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPosition {
    pub launcher: Launcher,
    pub rank: usize,
    pub size: usize,
    pub local_rank: Option<usize>,
    pub local_size: Option<usize>,
}

impl JobPosition {
    /// Whether a launcher has set this process's rank.
    pub fn is_known(variables: &Variables<'_>) -> bool {
        // A variable that is not UTF-8 is set, but cannot be read.
        LAUNCHERS.iter().any(|names| names.are_set(variables).unwrap_or(true))
    }

    pub fn find(variables: &Variables<'_>) -> Result<Self> {
        for names in &LAUNCHERS {
            if names.are_set(variables)? {
                return Self::read(names, variables);
            }
        }
        // A batch script, or a shell of salloc, has most variables of a rank, but is one process of Slurm's own.
        if let Some(job) = variables.text("SLURM_JOB_ID")? {
            return Err(Error::invalid(format!(
                "this process is in Slurm's job SLURM_JOB_ID={job:?}, but srun has not started it, so it is none of the job's ranks: \
                 start the program by srun, or by a launcher that sets RANK and WORLD_SIZE"
            )));
        }
        if variables.text("WORLD_SIZE")?.is_some() {
            variables.needed("RANK", "which of the job's processes this is, from 0")?;
        }
        let known: Vec<_> = LAUNCHERS.iter().map(|names| format!("{} ({})", names.rank, names.title)).collect();
        Err(Error::invalid(format!(
            "the rank of this process is not known, because no launcher has set its environment variables: RANK and WORLD_SIZE \
             are not set, nor is any of {}",
            known[1..].join(", ")
        )))
    }

    fn read(names: &Names, variables: &Variables<'_>) -> Result<Self> {
        let Some((size_name, size_text)) = variables.first(names.size)? else {
            return Err(variables
                .needed(names.size[0], "how many processes the job has")
                .err()
                .unwrap_or_else(|| Error::invalid("the environment changed while it was read")));
        };
        let size = number(&size_text).filter(|size| *size > 0).ok_or_else(|| {
            Error::invalid(format!("the environment variable {size_name}={size_text:?} is not a number of processes"))
        })?;
        let rank = below(names.rank, &variables.needed(names.rank, "this process's rank")?, size_name, size)?;
        if names.launcher != Launcher::Variables
            && let Some(other) = variables.text("WORLD_SIZE")?
            && number(&other) != Some(size)
        {
            return Err(Error::invalid(format!(
                "the environment variables contradict each other: WORLD_SIZE={other:?}, but {size_name}={size} ({}): \
                 unset WORLD_SIZE, or set RANK as well",
                names.title
            )));
        }
        let local_size = match variables.first(names.local_size)? {
            Some((name, text)) => {
                let local = number(&text).filter(|local| (1..=size).contains(local));
                Some(local.ok_or_else(|| {
                    Error::invalid(format!(
                        "the environment variable {name}={text:?} is not a number of processes from 1 to {size} ({size_name})"
                    ))
                })?)
            }
            None if names.launcher == Launcher::Slurm => nodes::slurm_local_size(variables)?,
            None => None,
        };
        let local_rank = match variables.first(names.local_rank)? {
            Some((name, text)) => {
                let (bound, limit) = local_size.map_or((size_name, size), |local| ("processes of this host", local));
                Some(below(name, &text, bound, limit)?)
            }
            None => None,
        };
        Ok(Self { launcher: names.launcher, rank, size, local_rank, local_size })
    }
}

/// A number in the range of the C ABI's int32_t, not negative.
fn number(text: &str) -> Option<usize> {
    text.parse::<i32>().ok().and_then(|number| usize::try_from(number).ok())
}

fn below(name: &str, text: &str, bound: &str, limit: usize) -> Result<usize> {
    number(text).filter(|number| *number < limit).ok_or_else(|| {
        let last = limit - 1;
        Error::invalid(format!(
            "the environment variable {name}={text:?} is not a number from 0 to {last} ({bound}={limit})"
        ))
    })
}
