//! How gradients travel: the part of a job that the collectives follow.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ByteSize, InvalidField, NetworkSelector};

/// Which values `communication.wire` takes.
const WIRE_ACCEPTED: &str = "f32 where communication.algorithm is named; leave that out, or name direct";

/// How gradients travel between workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Communication {
    /// Transport: auto (memory that workers share where all of them run on one host at one address, else tcp) or tcp. A named
    /// algorithm goes over tcp. Default: auto.
    pub backend: CommunicationBackend,
    /// How gradients are summed: auto (what a cost model finds cheapest for the workers, the hosts that they share and the bytes), ring,
    /// recursiveDoubling, halvingDoubling, doubleTree, torus, hierarchical (within hosts, then between them), direct or canonicalTree.
    /// The last one gives the same bits for any number of workers up to 64, for the price of passing each of a batch's 64 parts through
    /// the network by itself. Default: auto.
    pub algorithm: CommunicationAlgorithm,
    /// Number format of gradients between workers that share no memory: f32, bf16 or f16. The last two halve the bytes and round
    /// each gradient twice, as it is sent and as its sum is; sums are formed in f32. Where workers share some of the hosts, those sum
    /// in f32 first, and only what goes between hosts is rounded. Not with a named algorithm but direct. Default: f32.
    pub wire: WireFormat,
    /// Bytes of gradient that are reduced at once while earlier layers still run backward: a number, or one with Ki, Mi or
    /// Gi. The first that are ready are sent after at most 1Mi. What a layer, or a part of a large linear one, has ready at once is never
    /// cut. Default: what is best by the measured times of backward and messages; 1Mi where workers share memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_bytes: Option<ByteSize>,
    /// What protects gradients on the network: none, or tls (TLS 1.3, in which all workers show a certificate that only this job's have;
    /// the operator makes it and keeps it in a Secret of the job). Memory that workers share never leaves their host and may be used
    /// either way; what workers tell the coordinator is not encrypted. Default: none.
    pub encryption: Encryption,
    /// Networks by which workers reach each other, best first, each an interface's name such as eth1 or a subnet such as 10.20.0.0/16:
    /// a worker listens for the others at its address in the first of them that it is in, and fails where it is in none. NetworkSelector
    /// policies of the cluster hold for the addresses of pods only. Default: the pod's address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8)))]
    pub interfaces: Vec<NetworkSelector>,
    /// Connections of each two workers over tcp, 1 to 8. More than one helps where the network limits each flow; gradients then go over
    /// whichever has room. Default: 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 8)))]
    pub sockets_per_peer: u8,
}

impl Default for Communication {
    fn default() -> Self {
        Self {
            backend: CommunicationBackend::Auto,
            algorithm: CommunicationAlgorithm::Auto,
            wire: WireFormat::default(),
            bucket_bytes: None,
            encryption: Encryption::None,
            interfaces: Vec::new(),
            sockets_per_peer: 1,
        }
    }
}

impl Communication {
    pub(crate) fn check(&self) -> Result<(), InvalidField> {
        let possible = ByteSize::bytes(1024)..=ByteSize::mebibytes(1024);
        if let Some(bucket) = self.bucket_bytes.filter(|bucket| !possible.contains(bucket)) {
            return Err(InvalidField::new("spec.communication.bucketBytes", bucket, "1Ki to 1Gi"));
        }
        let rounds_twice = matches!(self.algorithm, CommunicationAlgorithm::Auto | CommunicationAlgorithm::Direct);
        if self.wire != WireFormat::F32 && !rounds_twice {
            return Err(InvalidField::new("spec.communication.wire", self.wire, WIRE_ACCEPTED));
        }
        Ok(())
    }
}

/// Transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum CommunicationBackend {
    Auto,
    Tcp,
}

/// All-reduce algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum CommunicationAlgorithm {
    Auto,
    Ring,
    RecursiveDoubling,
    HalvingDoubling,
    DoubleTree,
    Torus,
    Hierarchical,
    Direct,
    CanonicalTree,
}

/// Number formats on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum WireFormat {
    #[default]
    F32,
    Bf16,
    F16,
}

/// What protects gradients on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum Encryption {
    #[default]
    None,
    Tls,
}

impl fmt::Display for CommunicationAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for WireFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
