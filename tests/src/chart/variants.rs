//! Ways in which a platform team installs the chart. Each is rendered by a test, and a real API
//! server is asked whether it would take the objects.

/// One way to install the chart.
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// The words for helm that set the values. The namespaces `one` and `two` stand for any.
    pub words: &'static [&'static str],
}

/// The names of the Prometheus operator's resources that the chart uses.
pub const MONITORING: [&str; 3] = ["ServiceMonitor", "PodMonitor", "PrometheusRule"];

/// Every variant.
pub const VARIANTS: [Variant; 12] = [
    Variant { name: "by default", words: &[] },
    Variant { name: "highly available", words: &["--set", "replicas=3,podDisruptionBudget.minAvailable=50%"] },
    Variant { name: "in two namespaces", words: &["--set", "watchNamespaces={one,two},replicas=2"] },
    Variant {
        name: "without anything that spans the cluster",
        words: &[
            "--set",
            "watchNamespaces={one},crds.install=false,rbac.aggregate=false,admissionPolicy.enabled=false",
        ],
    },
    Variant {
        name: "with all monitoring",
        words: &[
            "--set",
            "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,\
             metrics.dashboards.enabled=true",
            "--set",
            "metrics.serviceMonitor.labels.release=p,metrics.podMonitor.labels.release=p,\
             metrics.prometheusRule.labels.release=p",
        ],
    },
    Variant {
        name: "with monitoring of one's own taste",
        words: &[
            "--set",
            "metrics.podMonitor.enabled=true,watchNamespaces={one},metrics.prometheusRule.enabled=true,\
             metrics.prometheusRule.disabledAlerts={LockstepJobLowParallelEfficiency,LockstepOperatorDown},\
             metrics.prometheusRule.runbookBaseUrl=https://runbooks.example/lockstep/,\
             metrics.prometheusRule.alertLabels.team=ml",
            "--set",
            "metrics.dashboards.enabled=true,metrics.dashboards.namespace=two,metrics.dashboards.folder=Training,\
             metrics.dashboards.labels.board=yes,metrics.service.annotations.scrape=no",
        ],
    },
    Variant {
        name: "behind a network policy",
        words: &[
            "--set",
            "networkPolicy.enabled=true,networkPolicy.apiServerPorts={443,16443},\
             networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=observability",
        ],
    },
    Variant {
        name: "with roles and account of one's own",
        words: &["--set", "rbac.create=false,serviceAccount.create=false,serviceAccount.name=mine,crds.keep=false"],
    },
    Variant {
        name: "under other names",
        words: &["--set", "nameOverride=trainer,commonLabels.team=ml,lease.name=one-of-us,lease.namespace=two"],
    },
    Variant { name: "under a whole other name", words: &["--set", "fullnameOverride=training-operator"] },
    Variant {
        name: "on chosen nodes",
        words: &[
            "--set",
            "nodeSelector.pool=system,tolerations[0].key=system,tolerations[0].operator=Exists,priorityClassName=\
             system-cluster-critical,terminationGracePeriodSeconds=60,resources.limits.cpu=1",
            "--set",
            "topologySpreadConstraints[0].topologyKey=zone,topologySpreadConstraints[0].maxSkew=1,\
             topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule,replicas=2,podDisruptionBudget.enabled=false",
        ],
    },
    Variant {
        name: "with images of one's own and more of everything",
        words: &[
            "--set",
            "image.repository=registry.example/lockstep/operator,image.digest=\
             sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef,image.pullPolicy=Always,\
             imagePullSecrets[0].name=pull,trainer.image.tag=1.2.3,log.format=text",
            "--set",
            "extraArgs={--no-leader-election},extraEnv[0].name=A,extraEnv[0].value=b,extraVolumes[0].name=v,\
             extraVolumes[0].emptyDir.medium=Memory,extraVolumeMounts[0].name=v,extraVolumeMounts[0].mountPath=/v,\
             podLabels.a=b,podAnnotations.a=b,deploymentAnnotations.a=b,metrics.service.enabled=false",
        ],
    },
];
