//! What the files of models share: a graph to which layers with names are added.

use crate::{
    error::Error,
    graph::{Graph, Network, Value},
    layers::{Activation, Layer, SoftmaxCrossEntropy},
};

/// A graph and the value that the next layer reads.
pub(super) struct Chain {
    pub(super) graph: Graph,
    pub(super) at: Value,
}

impl Chain {
    pub(super) fn on(input: crate::Shape) -> Chain {
        let mut graph = Graph::new();
        let at = graph.input(input);
        Chain { graph, at }
    }

    /// Adds a layer with parameters.
    pub(super) fn named(&mut self, name: &str, layer: impl Into<Layer>) -> Result<(), Error> {
        self.at = self.graph.add(name, layer, &[self.at])?;
        Ok(())
    }

    /// Adds one without.
    pub(super) fn then(&mut self, layer: impl Into<Layer>) -> Result<(), Error> {
        self.at = self.graph.then(layer, self.at)?;
        Ok(())
    }

    pub(super) fn relu(&mut self) -> Result<(), Error> {
        self.then(Activation::relu())
    }

    /// Adds a layer with parameters and a ReLU.
    pub(super) fn with_relu(&mut self, name: &str, layer: impl Into<Layer>) -> Result<(), Error> {
        self.named(name, layer)?;
        self.relu()
    }

    /// The network that tells classes apart.
    pub(super) fn classifier(self) -> Result<Network, Error> {
        self.with_loss(SoftmaxCrossEntropy::default())
    }

    pub(super) fn with_loss(mut self, loss: SoftmaxCrossEntropy) -> Result<Network, Error> {
        self.graph.loss(loss, self.at)?;
        self.graph.build()
    }
}
