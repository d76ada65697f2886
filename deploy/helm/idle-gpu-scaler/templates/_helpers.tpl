{{- define "scaler.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "scaler.fullname" -}}
{{- $name := include "scaler.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "scaler.selector" -}}
app.kubernetes.io/name: {{ include "scaler.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "scaler.labels" -}}
{{ include "scaler.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "scaler.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "scaler.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "scaler.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "scaler.podSecurity" -}}
runAsNonRoot: true
{{- if ne .Values.platform "openshift" }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "scaler.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "scaler.certificate" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "scaler.fullname" .)) -}}
{{- end }}

{{/* The Service's names, from the longest to the shortest one, as JSON. */}}
{{- define "scaler.hosts" -}}
{{- $service := printf "%s.%s" (include "scaler.fullname" .) .Release.Namespace -}}
{{- list (printf "%s.svc.%s" $service .Values.clusterDomain) (printf "%s.svc" $service) $service | toJson -}}
{{- end }}

{{/* What ScaledObjects may write in scalerAddress to mean this release, as JSON. Those that an IdlePolicy attaches have
     the first one: with the domain, which every certificate of a Service covers. */}}
{{- define "scaler.addresses" -}}
{{- $addresses := list -}}
{{- range include "scaler.hosts" . | fromJsonArray -}}
{{- $addresses = append $addresses (printf "%s:%v" . $.Values.service.port) -}}
{{- end -}}
{{- concat $addresses .Values.keda.extraScalerAddresses | toJson -}}
{{- end }}

{{/* The settings file: what follows from TLS, over it what is given, and over that what the chart decides. */}}
{{- define "scaler.settings" -}}
{{- $kubernetes := dict "lease" (dict "name" (include "scaler.fullname" .)) -}}
{{- with .Values.namespaces -}}
{{- $_ := set $kubernetes "namespaces" . -}}
{{- end -}}
{{- $grpc := dict "address" "0.0.0.0:9090" -}}
{{- $http := dict "address" "0.0.0.0:8080" -}}
{{- if ne .Values.tls.source "none" -}}
{{- $pair := dict "certFile" "/etc/idle-gpu-scaler-tls/tls.crt" "keyFile" "/etc/idle-gpu-scaler-tls/tls.key" -}}
{{- if .Values.tls.http -}}
{{- $_ := set $http "tls" $pair -}}
{{- end -}}
{{- $clients := dict -}}
{{- with .Values.tls.clients -}}
{{- if .required -}}
{{- $folder := ternary "/etc/idle-gpu-scaler-clients" "/etc/idle-gpu-scaler-tls" (ne .caSecretName "") -}}
{{- $clients = dict "clientCaFile" (printf "%s/%s" $folder .caKey) "clientNames" .names -}}
{{- end -}}
{{- end -}}
{{- $_ := set $grpc "tls" (merge $clients $pair) -}}
{{- end -}}
{{- $own := dict
  "mode" .Values.mode
  "grpc" $grpc
  "http" $http
  "kubernetes" $kubernetes
  "keda" (dict "scalerAddresses" (include "scaler.addresses" . | fromJsonArray))
-}}
{{- $below := dict -}}
{{- if ne .Values.tls.source "none" -}}
{{- $_ := set $below "keda" (dict "authenticationRef" (dict "kind" "ClusterTriggerAuthentication" "name" (include "scaler.fullname" .))) -}}
{{- end -}}
{{- if .Values.rbac.suspendAt -}}
{{- $_ := set $own "suspendAt" true -}}
{{- end -}}
{{- if include "scaler.dispatches" . -}}
{{- $_ := set $own "components" (list "scaler" "reconciler" "dispatcher") -}}
{{- end -}}
{{- mergeOverwrite $below (deepCopy .Values.settings) $own | toYaml -}}
{{- end }}

{{/* Not empty where the authority of OpenShift's certificates is all that KEDA needs, and no other authenticationRef is given. */}}
{{- define "scaler.authenticates" -}}
{{- $given := "" -}}
{{- with .Values.settings }}{{ with .keda }}{{ with .authenticationRef }}{{ $given = .name }}{{ end }}{{ end }}{{ end -}}
{{- if and (eq .Values.tls.source "openshift") (not .Values.tls.clients.required) (not $given) (empty .Values.namespaces) }}true{{ end -}}
{{- end }}

{{/* Not empty where workloads are woken by requests with bearer tokens. */}}
{{- define "scaler.wakes" -}}
{{- with .Values.settings }}{{ with .http }}{{ with .wake }}true{{ end }}{{ end }}{{ end -}}
{{- end }}

{{/* Not empty where clusters are nominated for Workloads of MultiKueue. */}}
{{- define "scaler.dispatches" -}}
{{- if and .Values.rbac.dispatcher (empty .Values.namespaces) }}true{{ end -}}
{{- end }}

{{/* Not empty where AddOnPlacementScores are written. */}}
{{- define "scaler.scores" -}}
{{- with .Values.settings }}{{ with .multiKueue }}{{ with .scores }}true{{ end }}{{ end }}{{ end -}}
{{- end }}

{{/* The namespace of Kueue, with the Secrets by which workers are reached. */}}
{{- define "scaler.kueueNamespace" -}}
{{- with .Values.settings }}{{ with .multiKueue }}{{ with .namespace }}{{ . }}{{ end }}{{ end }}{{ end -}}
{{- end }}

{{/* Not empty where the API server is asked what users may do: whom a token is of, or whom a proxy names. */}}
{{- define "scaler.reviews" -}}
{{- include "scaler.wakes" . }}{{ with .Values.settings }}{{ with .page }}{{ with .userHeader }}true{{ end }}{{ end }}{{ end -}}
{{- end }}

{{/* The Leases of this release, as JSON. */}}
{{- define "scaler.leases" -}}
{{- $name := include "scaler.fullname" . -}}
{{- list $name (printf "%s-metrics" $name) | toJson -}}
{{- end }}

{{/* The rules of one of the roles in files/permissions.yaml, as far as these values need them. */}}
{{- define "scaler.rules" -}}
{{- $values := .root.Values -}}
{{- range index (.root.Files.Get "files/permissions.yaml" | fromYaml) .role }}
{{- $isProvided := or $values.rbac.provisioning $values.admissionCheck.policy.provisioning (ne .part "provisioning") (eq $.role "read") }}
{{- $isSwitched := or $values.rbac.switches (ne .part "Notebooks and InferenceServices") }}
{{- $isTold := or $values.rbac.suspendAt (ne .part "suspend-at of pods") }}
{{- $isScored := or (include "scaler.scores" $.root) (ne .part "AddOnPlacementScores") }}
{{- if and (or .confined (not $values.namespaces)) $isProvided $isSwitched $isTold $isScored }}
{{- if .ofTargets }}
{{- $suffix := ternary (printf "/%s" .subresource) "" (ne .subresource "") }}
{{- $need := . }}
{{- range $values.targets }}
# {{ $need.part }}: the kinds that are scaled
- apiGroups: [{{ .apiGroup | quote }}]
  resources:
    {{- range .resources }}
    - {{ . }}{{ $suffix }}
    {{- end }}
  verbs: {{ $need.verbs | toJson }}
{{- end }}
{{- else if eq $.role "lease" }}
{{- $isLease := has "leases" .resources }}
# {{ .part }}: {{ ternary "its own Lease, and the one by which replicas that only observe take turns" "the record of limited keeps" $isLease }}
- apiGroups: [{{ .apiGroup | quote }}]
  resources: {{ .resources | toJson }}
  resourceNames: {{ ternary (include "scaler.leases" $.root) (list (printf "%s-keeps" (include "scaler.fullname" $.root)) | toJson) $isLease }}
  verbs: {{ without .verbs "create" | toJson }}
# What is created has no name yet to be allowed by.
- apiGroups: [{{ .apiGroup | quote }}]
  resources: {{ .resources | toJson }}
  verbs: [create]
{{- else }}
# {{ .part }}
- apiGroups: [{{ .apiGroup | quote }}]
  resources:
    {{- range .resources }}
    - {{ . }}
    {{- end }}
  verbs: {{ .verbs | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq .role "write" }}
{{- range $values.hooks.resources }}
# hooks: the objects that they make
- apiGroups: [{{ .apiGroup | quote }}]
  resources: {{ .resources | toJson }}
  verbs: [create, get]
{{- end }}
{{- end }}
{{- end }}
