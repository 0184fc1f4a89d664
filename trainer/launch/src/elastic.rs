use serde::{Deserialize, Serialize};

/// How many workers a group may have while it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Elastic {
    /// Training goes on with as few workers; with fewer it pauses. 1 to replicas. Default where elastic is left out: replicas.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub min_replicas: u32,
    /// The job can be scaled up to so many workers while it trains. replicas to 1000. Default where elastic is left out: replicas.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub max_replicas: u32,
}

impl Elastic {
    /// Of a group that always has `replicas` workers.
    #[must_use]
    pub const fn fixed(replicas: u32) -> Self {
        Self { min_replicas: replicas, max_replicas: replicas }
    }
}
