//! The rules of a job that a schema cannot state, as CEL: the API server refuses what breaks one. `Workload::check` and
//! `ValidJob` state those that do not compare with an older object again, for manifests that never see an API server.

use lockstep_launch::MIN_SHARDS;

/// A CEL rule over `spec`.
pub(crate) struct Rule {
    /// Holds for a valid object.
    pub(crate) rule: String,
    /// What is accepted.
    pub(crate) message: String,
    /// The field to blame, below where the rule stands; none where the schema does not know it, as in the metadata.
    pub(crate) field: Option<&'static str>,
}

/// Longest name of a job: `<name>-worker-999` and `<name>-coordinator` must be DNS labels of at most 63 characters.
pub(crate) const MAX_NAME_LENGTH: usize = 50;
pub(crate) const NAME_ACCEPTED: &str =
    "a lower-case letter, then lower-case letters, digits and `-`, ending in a letter or digit, at most 50 characters";

/// Where gradients may be added as a tree of shards: every worker has one at least, however many there are.
pub(crate) fn canonical_accepted() -> String {
    format!("canonicalTree takes up to {MIN_SHARDS} replicas; take fewer, or leave it out")
}

/// Rules over the whole object.
pub(crate) fn of_the_object() -> Vec<Rule> {
    vec![Rule {
        rule: format!(
            "self.metadata.name.size() <= {MAX_NAME_LENGTH} && \
             self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
        ),
        message: format!("metadata.name: {NAME_ACCEPTED}"),
        field: None,
    }]
}

/// Rules over `spec`, between its fields or inside a string.
pub(crate) fn of_the_spec() -> Vec<Rule> {
    let mut rules = vec![
        Rule {
            rule: "self.model.name == 'mlp' || !has(self.model.hidden) || self.model.hidden.size() == 0".to_owned(),
            message: "spec.model.hidden: only for model mlp; leave it out".to_owned(),
            field: Some(".model.hidden"),
        },
        Rule {
            rule: "self.dataset.format != 'idx' || has(self.dataset.uri)".to_owned(),
            message: "spec.dataset.uri: required for format idx: file:///FOLDER".to_owned(),
            field: Some(".dataset.uri"),
        },
        Rule {
            rule: format!("self.dataset.format != 'idx' || !has(self.dataset.uri) || {}", is_file("self.dataset.uri")),
            message: "spec.dataset.uri: file:///FOLDER, an absolute path without `..`".to_owned(),
            field: Some(".dataset.uri"),
        },
        Rule {
            rule: is_file("self.checkpoint.uri"),
            message: "spec.checkpoint.uri: file:///FOLDER, an absolute path without `..`".to_owned(),
            field: Some(".checkpoint.uri"),
        },
        Rule {
            rule: "!has(self.communication.bucketBytes) || \
                   quantity(string(self.communication.bucketBytes)).compareTo(quantity('1Ki')) >= 0 && \
                   quantity(string(self.communication.bucketBytes)).compareTo(quantity('1Gi')) <= 0"
                .to_owned(),
            message: "spec.communication.bucketBytes: 1Ki to 1Gi".to_owned(),
            field: Some(".communication.bucketBytes"),
        },
        Rule {
            rule: "self.communication.wire == 'f32' || self.communication.algorithm in ['auto', 'direct']".to_owned(),
            message:
                "spec.communication.wire: f32 where communication.algorithm is named; leave that out, or name direct"
                    .to_owned(),
            field: Some(".communication.wire"),
        },
        Rule {
            rule: format!("self.communication.algorithm != 'canonicalTree' || self.replicas <= {MIN_SHARDS}"),
            message: format!("spec.communication.algorithm: {}", canonical_accepted()),
            field: Some(".communication.algorithm"),
        },
        Rule {
            rule: "!has(self.template) || !has(self.template.spec) || \
                   self.template.spec.containers.exists(c, c.name == 'trainer')"
                .to_owned(),
            message: "spec.template.spec.containers: one must be named trainer".to_owned(),
            field: Some(".template"),
        },
    ];
    rules.extend(IMMUTABLE.iter().map(|field| immutable(field)));
    rules
}

/// The fields of `spec` that keep their value for the life of the job.
pub(crate) const IMMUTABLE: [&str; 12] = [
    ".replicas",
    ".managedBy",
    ".model",
    ".dataset",
    ".training",
    ".communication",
    ".checkpoint",
    ".failurePolicy",
    ".activeDeadlineSeconds",
    ".cleanPodPolicy",
    ".ttlSecondsAfterFinished",
    ".template",
];

fn immutable(field: &'static str) -> Rule {
    Rule {
        rule: format!(
            "has(self{field}) == has(oldSelf{field}) && (!has(self{field}) || self{field} == oldSelf{field})"
        ),
        message: format!("spec{field}: cannot change once the job exists; delete the job and create it anew"),
        field: Some(field),
    }
}

fn is_file(uri: &str) -> String {
    format!("{uri}.startsWith('file:///') && {uri}.size() > 8 && !({uri} + '/').contains('/../')")
}
