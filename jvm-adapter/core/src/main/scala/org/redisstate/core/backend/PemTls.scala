package org.redisstate.core.backend

import java.nio.file.{Files, Path}
import java.security.{GeneralSecurityException, KeyFactory, KeyStore, PrivateKey}
import java.security.cert.{Certificate, CertificateFactory}
import java.security.spec.{InvalidKeySpecException, PKCS8EncodedKeySpec}
import java.util.Base64
import javax.net.ssl.{KeyManagerFactory, SSLContext, SSLSocketFactory, TrustManagerFactory}

import scala.jdk.CollectionConverters._

import org.redisstate.core.errors.ConfigException

/** TLS from PEM files, the form in which Redis itself takes them. */
private[backend] object PemTls {

  def socketFactory(settings: TlsSettings): SSLSocketFactory =
    try {
      val context = SSLContext.getInstance("TLS")
      val keys = for (cert <- settings.certFile; key <- settings.keyFile)
        yield keyManagers(cert, key)
      context.init(keys.orNull, settings.caFile.map(trustManagers).orNull, null)
      context.getSocketFactory
    } catch {
      case e @ (_: GeneralSecurityException | _: java.io.IOException | _: IllegalArgumentException) =>
        throw new ConfigException(
          s"the TLS files cannot be used: ${e.getMessage}. Check that " +
            "tls.caFile, tls.certFile and tls.keyFile are readable PEM files on driver and executors.",
          e
        )
    }

  private def certificates(file: String): Seq[Certificate] = {
    val in = Files.newInputStream(Path.of(file))
    try CertificateFactory.getInstance("X.509").generateCertificates(in).asScala.toSeq
    finally in.close()
  }

  private def trustManagers(caFile: String) = {
    val store = emptyStore()
    certificates(caFile).zipWithIndex.foreach { case (ca, i) =>
      store.setCertificateEntry(s"ca$i", ca)
    }
    val factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm)
    factory.init(store)
    factory.getTrustManagers
  }

  private def keyManagers(certFile: String, keyFile: String) = {
    val store = emptyStore()
    store.setKeyEntry(
      "client",
      privateKey(keyFile),
      Array.emptyCharArray,
      certificates(certFile).toArray)
    val factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm)
    factory.init(store, Array.emptyCharArray)
    factory.getKeyManagers
  }

  private def privateKey(file: String): PrivateKey = {
    val body =
      Files.readString(Path.of(file)).linesIterator.filterNot(_.startsWith("-----")).mkString
    val spec = new PKCS8EncodedKeySpec(Base64.getDecoder.decode(body))
    Iterator("RSA", "EC", "Ed25519")
      .flatMap { algorithm =>
        try Some(KeyFactory.getInstance(algorithm).generatePrivate(spec))
        catch { case _: InvalidKeySpecException => None }
      }
      .nextOption()
      .getOrElse(throw new GeneralSecurityException(s"$file has no PKCS#8 private key"))
  }

  private def emptyStore(): KeyStore = {
    val store = KeyStore.getInstance("PKCS12")
    store.load(null, null)
    store
  }
}
