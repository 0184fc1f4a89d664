//! The communication of a job: how gradients travel between its workers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ByteSize, InvalidField, NetworkSelector};

/// Accepted values of `communication.wire`.
const WIRE_ACCEPTED: &str = "f32 if communication.algorithm is named; leave that out, or name direct";

/// How gradients travel between workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Communication {
    /// Transport: auto or tcp. With auto, workers that all run on one host at one address share
    /// memory; others use tcp. A named algorithm runs over tcp. Default: auto.
    pub backend: CommunicationBackend,
    /// Algorithm that sums gradients: auto, ring, recursiveDoubling, halvingDoubling, doubleTree,
    /// torus, hierarchical (within hosts, then between them), direct or canonicalTree. With auto, a
    /// cost model picks the cheapest for the workers, their hosts and the number of bytes.
    /// canonicalTree gives the same bits for any number of workers up to 64, but sends each of a
    /// batch's 64 virtual shards through the network by itself. Default: auto.
    pub algorithm: CommunicationAlgorithm,
    /// Number format of gradients between workers that share no memory: f32, bf16 or f16. bf16 and
    /// f16 halve the bytes. They round each gradient twice: when it is sent, and when its sum is
    /// sent. Sums are formed in f32. Workers on the same host sum in f32 first, and only messages
    /// between hosts are rounded. A named algorithm other than direct accepts only f32. Default:
    /// f32.
    pub wire: WireFormat,
    /// Bytes of gradient that are summed at once while earlier layers still run backward: a number,
    /// or one with Ki, Mi or Gi. The first bucket is sent after at most 1Mi. Gradients that a
    /// layer, or a part of a large linear layer, finishes at once stay in one bucket. Default: the
    /// best size by the measured times of backward and messages; 1Mi if workers share memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_bytes: Option<ByteSize>,
    /// Protection of gradients on the network: none or tls. tls is TLS 1.3, in which workers show a
    /// certificate that only this job has; the operator makes it and keeps it in a Secret of the
    /// job. Memory that workers share never leaves their host, so it may be used with either value.
    /// Messages to the coordinator are not encrypted. Default: none.
    pub encryption: Encryption,
    /// Networks over which workers reach each other, best first. Each is an interface's name such
    /// as eth1, or a subnet such as 10.20.0.0/16. A worker listens at its address in the first
    /// network that it belongs to, and fails if it belongs to none. Network policies of the cluster
    /// apply only to the addresses of pods. Default: the pod's address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8)))]
    pub interfaces: Vec<NetworkSelector>,
    /// Connections of each pair of workers over tcp, 1 to 8. More than one helps if the network
    /// limits each flow; gradients then use any connection that has room. Default: 1.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
pub enum CommunicationAlgorithm {
    #[default]
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

/// Protection of gradients on the network.
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
