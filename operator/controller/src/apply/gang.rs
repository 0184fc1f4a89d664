//! Requests about gang scheduling. The objects of its back ends have no types here, and a cluster
//! may lack them.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use lockstep_api::{TrainingJob, label};
use lockstep_plan::PodGroup;
use serde_json::json;

use super::{
    ApplyError,
    objects::{FIELD_MANAGER, make, make_new, refused_kind},
};

const KIND: &str = "PodGroup";

/// Makes the job's group or corrects it.
pub(super) async fn put_pod_group(
    client: &Client,
    namespace: &str,
    job: &TrainingJob,
    group: &PodGroup,
) -> Result<(), ApplyError> {
    let PodGroup { gang, api_group, versions, missing, metadata, spec } = group;
    let name = metadata.name.clone().unwrap_or_default();
    for version in *versions {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(api_group, version, KIND));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        // A server that does not know the kind answers 404 without a reason.
        let there = match api.get_metadata(&name).await {
            Ok(there) => Some(there),
            Err(kube::Error::Api(refusal)) if refusal.code == 404 => None,
            Err(source) => return Err(ApplyError::Request { attempt: format!("read {KIND} {name}"), source }),
        };
        let is_ours = |owner: &str| Some(owner) == job.metadata.uid.as_deref();
        if there.is_some_and(|there| !there.owner_references().iter().any(|owner| is_ours(&owner.uid))) {
            return Err(ApplyError::Taken { kind: KIND.to_owned(), name });
        }
        let object = json!({"apiVersion": resource.api_version, "kind": KIND, "metadata": metadata, "spec": spec});
        match api.patch(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(object)).await {
            Ok(_) => return Ok(()),
            // The API server does not know the kind. It may know another version.
            Err(kube::Error::Api(refusal)) if refusal.code == 404 && !refusal.message.contains("namespaces") => {}
            Err(source) => return Err(refused_kind(KIND.to_owned(), name, source)),
        }
    }
    Err(ApplyError::NoGang { gang, api_group, missing })
}

/// Makes a pod. The type of a pod lacks the field that names a native group.
pub(super) async fn make_pod(client: &Client, namespace: &str, job: &TrainingJob, pod: &Pod) -> Result<(), ApplyError> {
    let Some(group) = pod.annotations().get(label::SCHEDULING_GROUP) else {
        return make_new::<Pod>(client, namespace, job, pod).await;
    };
    let mut content = json!(pod);
    content["spec"]["schedulingGroup"] = json!({"podGroupName": group});
    make::<Pod>(client, namespace, job, &pod.name_any(), &content).await
}
