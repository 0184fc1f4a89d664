use serde::{Deserialize, Serialize};

/// The numbers of workers that a group may have while it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Elastic {
    /// Fewest workers that train; with fewer the job pauses. 1 to replicas. Default if elastic is
    /// left out: replicas.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub min_replicas: u32,
    /// Most workers that the job can be scaled up to while it trains. replicas to 1000. Default if
    /// elastic is left out: replicas.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub max_replicas: u32,
}

impl Elastic {
    /// Makes the bounds of a group that always has `replicas` workers.
    #[must_use]
    pub const fn fixed(replicas: u32) -> Self {
        Self { min_replicas: replicas, max_replicas: replicas }
    }
}
