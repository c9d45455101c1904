//! How much the library's own tests prove. `make check` and plain `cargo test` prove the least; `make test` and `make
//! test-more` set the environment variable `GLOO_RS_TEST_TIER`.

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tier {
    Check,
    Test,
    More,
}

impl Tier {
    pub fn from_environment() -> Self {
        match std::env::var("GLOO_RS_TEST_TIER").as_deref() {
            Err(_) | Ok("check") => Self::Check,
            Ok("test") => Self::Test,
            Ok("more") => Self::More,
            Ok(other) => panic!("GLOO_RS_TEST_TIER={other}: check, test or more"),
        }
    }

    /// The number for this tier.
    pub fn of<T>(self, check: T, test: T, more: T) -> T {
        match self {
            Self::Check => check,
            Self::Test => test,
            Self::More => more,
        }
    }
}
