//! Registration of a row of the table with a registry of the `prometheus` library.

use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry, Result, core::Collector,
};

use crate::table::Metric;

/// The labels of every series of a job.
pub(crate) const JOB: [&str; 2] = ["job_namespace", "job_name"];

/// Each function registers a metric and returns it.
///
/// # Errors
/// The registry holds a metric of this name.
impl Metric {
    fn options(&self) -> Opts {
        Opts::new(self.name, self.meaning)
    }

    fn buckets(&self, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::new(self.name, self.meaning).buckets(buckets.to_vec())
    }

    /// A counter without labels.
    pub fn counter(&self, registry: &Registry) -> Result<Counter> {
        registered(registry, Counter::with_opts(self.options())?)
    }

    /// A counter of whole numbers without labels.
    pub fn whole_counter(&self, registry: &Registry) -> Result<IntCounter> {
        registered(registry, IntCounter::with_opts(self.options())?)
    }

    /// A counter with the metric's own labels.
    pub fn counters(&self, registry: &Registry) -> Result<CounterVec> {
        registered(registry, CounterVec::new(self.options(), self.labels)?)
    }

    /// A counter of whole numbers with the metric's own labels.
    pub fn whole_counters(&self, registry: &Registry) -> Result<IntCounterVec> {
        registered(registry, IntCounterVec::new(self.options(), self.labels)?)
    }

    /// A counter with the labels of a job, then its own.
    pub fn counters_of_jobs(&self, registry: &Registry) -> Result<CounterVec> {
        registered(registry, CounterVec::new(self.options(), &self.labels_of_jobs())?)
    }

    /// A gauge without labels.
    pub fn gauge(&self, registry: &Registry) -> Result<Gauge> {
        registered(registry, Gauge::with_opts(self.options())?)
    }

    /// A gauge of whole numbers without labels.
    pub fn whole_gauge(&self, registry: &Registry) -> Result<IntGauge> {
        registered(registry, IntGauge::with_opts(self.options())?)
    }

    /// A gauge with the metric's own labels.
    pub fn gauges(&self, registry: &Registry) -> Result<GaugeVec> {
        registered(registry, GaugeVec::new(self.options(), self.labels)?)
    }

    /// A gauge with the labels of a job, then its own.
    pub fn gauges_of_jobs(&self, registry: &Registry) -> Result<GaugeVec> {
        registered(registry, GaugeVec::new(self.options(), &self.labels_of_jobs())?)
    }

    /// A histogram without labels.
    pub fn histogram(&self, registry: &Registry, buckets: &[f64]) -> Result<Histogram> {
        registered(registry, Histogram::with_opts(self.buckets(buckets))?)
    }

    /// A histogram with the metric's own labels.
    pub fn histograms(&self, registry: &Registry, buckets: &[f64]) -> Result<HistogramVec> {
        registered(registry, HistogramVec::new(self.buckets(buckets), self.labels)?)
    }

    fn labels_of_jobs(&self) -> Vec<&'static str> {
        JOB.iter().chain(self.labels).copied().collect()
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
