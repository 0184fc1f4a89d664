{{- /* What the operator may do where it runs jobs, the same in every scope: files/rbac.yaml. */}}
{{- define "lockstep.operatorRules" -}}
{{ (.Files.Get "files/rbac.yaml" | fromYaml).rules | toYaml }}
{{- end }}
