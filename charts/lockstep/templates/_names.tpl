{{- define "lockstep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "lockstep.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "lockstep.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "lockstep.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "lockstep.operatorName" -}}
{{ include "lockstep.fullname" . }}-operator
{{- end }}

{{- define "lockstep.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "lockstep.operatorName" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the service account to use, or set serviceAccount.create=true" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "lockstep.leaseName" -}}
{{- default (include "lockstep.operatorName" .) .Values.lease.name }}
{{- end }}

{{- define "lockstep.leaseNamespace" -}}
{{- default .Release.Namespace .Values.lease.namespace }}
{{- end }}

{{- define "lockstep.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lockstep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "lockstep.testLabels" -}}
app.kubernetes.io/name: {{ include "lockstep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end }}

{{- define "lockstep.labels" -}}
{{ include "lockstep.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: lockstep
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* An image reference from [image, the chart]. */}}
{{- define "lockstep.image" -}}
{{- $image := index . 0 }}
{{- $chart := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default $chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- /* Words for kubectl: where the operator watches for jobs, if not everywhere. */}}
{{- define "lockstep.inFirstWatched" -}}
{{- with .Values.watchNamespaces }} -n {{ first . }}{{ end }}
{{- end }}
